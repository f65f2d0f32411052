/* What a finding is, beside program_finding of program.h. */
#ifndef CXLEMU_FINDING_H
#define CXLEMU_FINDING_H

/* The kinds of findings, and the roles of the places that a finding names: faults/programs/findings.py has their words. */
enum check_kind {
    NOT_FLUSHED = 1,
    NOT_FENCED,
    FENCED_LATE,
    NO_INVALIDATE,
    INVALIDATED_EARLY,
    INVALIDATE_UNFENCED,
    TWO_WRITERS,
    RESIDUE,
    OLDER_WRITE,
    STALE_ALLOCATE,
    LOCKED,
    OUTSIDE,
    MSYNC,
    DIRTY_AT_EXIT,
    LOST_UPDATE,
    OUT_OF_ROOM,
    INVALIDATE_OVERTAKES,
    LOST_IN_CRASH, /* found by the driver */
    ASSERTION, /* holds.c */
    INVARIANT,
    NOT_LINEARIZABLE, /* found by the driver */
    COPY_NOT_ENDED,
    TORN_IN_CRASH, /* found by the driver */
    TORN, /* tears.c */
    TORN_LOAD, /* the same */
};
enum check_role {
    AT_STORE,
    AT_FLUSH,
    AT_FENCE,
    AT_PUBLISHED,
    AT_TOLD,
    AT_ACCESS,
    AT_DROP,
    AT_DROP_FENCE,
    AT_ARRIVES,
    ROLES
};
enum check_rule { PREDICTED, MANIFEST }; /* program_finding.rule */

#endif
