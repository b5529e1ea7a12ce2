/* Where the counter of instructions is turned on and off: requests to Valgrind, which are no-ops without it. */
#include <valgrind/callgrind.h>

void start_counting(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop_counting(void) { CALLGRIND_STOP_INSTRUMENTATION; }
