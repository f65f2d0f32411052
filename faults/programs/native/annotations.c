/* What programs call that see themselves compiled with -fsanitize=thread: functions by which they tell the sanitizer's runtime of their
 * locks, races and fibers. Here these do nothing, as the checker sees all accesses. */
#include "program.h"

__attribute__((used)) static uintptr_t cxlemu_nothing(void) { return 0; }

#define ALL(prefix, names)                                                                       \
    __asm__(".irp name, " names "\n.globl " prefix "\\name\n.type " prefix "\\name, @function\n" \
            ".set " prefix "\\name, cxlemu_nothing\n.endr\n")

ALL("Annotate",
    "HappensBefore,HappensAfter,CondVarWait,CondVarSignal,CondVarSignalAll,MutexIsNotPHB,MutexIsUsedAsCondVar,"
    "RWLockCreate,RWLockCreateStatic,RWLockDestroy,RWLockAcquired,RWLockReleased,PCQCreate,PCQDestroy,PCQPut,PCQGet,"
    "NewMemory,PublishMemoryRange,UnpublishMemoryRange,TraceMemory,FlushState,FlushExpectedRaces,ExpectRace,BenignRace,"
    "BenignRaceSized,EnableRaceDetection,IgnoreReadsBegin,IgnoreReadsEnd,IgnoreWritesBegin,IgnoreWritesEnd,"
    "IgnoreSyncBegin,IgnoreSyncEnd,ThreadName,NoOp");
ALL("WTFAnnotate", "HappensBefore,HappensAfter,BenignRaceSized");
ALL("RunningOn", "Valgrind");
ALL("__tsan_",
    "acquire,release,flush_memory,mutex_create,mutex_destroy,mutex_pre_lock,mutex_post_lock,mutex_pre_unlock,"
    "mutex_post_unlock,mutex_pre_signal,mutex_post_signal,mutex_pre_divert,mutex_post_divert,external_register_tag,"
    "external_register_header,external_assign_tag,external_read,external_write,get_current_fiber,create_fiber,"
    "destroy_fiber,switch_to_fiber,set_fiber_name");
