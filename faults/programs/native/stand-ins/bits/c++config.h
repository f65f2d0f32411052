/* libstdc++'s configuration, and that the program itself has the code of std::string: libstdc++.so's is not instrumented. With
 * _GLIBCXX_ASSERTIONS, libstdc++ says the same. */
#pragma GCC system_header
#include_next <bits/c++config.h>
#if _GLIBCXX_EXTERN_TEMPLATE > 0
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE -1
#endif
