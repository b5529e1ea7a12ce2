/* Preloaded, it makes every fdatasync last as long as SLOW_SYNC_MS says at least, as on a memory card.
 *
 *     cc -O2 -shared -fPIC -o slow_sync.so slow_sync.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int fdatasync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *text = getenv("SLOW_SYNC_MS");
    long ms = text ? atol(text) : 0;
    struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
    int result = next(fd);
    nanosleep(&wait, NULL);
    return result;
}
