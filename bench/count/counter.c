/* Where the counter of instructions is turned on and off, and where a round's count is written and begins anew: requests
   to Valgrind, which are no-ops without it. */
#include <valgrind/callgrind.h>

void start_counting(void) { CALLGRIND_START_INSTRUMENTATION; }
void end_round(void) { CALLGRIND_DUMP_STATS; }
void stop_counting(void) { CALLGRIND_STOP_INSTRUMENTATION; }
