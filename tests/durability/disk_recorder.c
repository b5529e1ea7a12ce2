/* Writes down what a process does to the files below one folder, so that a power cut can be played afterwards.
 *
 *   cc -O2 -shared -fPIC -o disk_recorder.so disk_recorder.c -ldl -pthread
 *   WEFT_RECORD_TREE=/folder WEFT_RECORD_JOURNAL=/elsewhere/journal LD_PRELOAD=./disk_recorder.so command
 *
 * Every call that changes the tree is made and then appended to the journal as one record, in one order (a mutex). A
 * sync is two records, before and after the call: what was written meanwhile is not known to be durable. What is sent to
 * clients is written down too, so that a reader knows what was acknowledged before which write. recording.py reads it. Numbers are little-endian; a record is
 *   u32 magic, u32 kind, u64 inode, u64 offset or length, u32 length of text 1, u32 length of text 2, the texts.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind {
  CREATE = 1, OPEN, WRITE, RESIZE, EXTEND, SYNC_BEGIN, SYNC_END, DIRECTORY_SYNC_BEGIN, DIRECTORY_SYNC_END, LINK, RENAME,
  UNLINK, MAKE_DIRECTORY, REMOVE_DIRECTORY, SENT, UNSUPPORTED
};

enum { OTHER, FILE_OF_TREE, FOLDER_OF_TREE, CLIENT };

#define MAGIC 0x57464a31
#define DESCRIPTORS_MAX 65536

struct record {
  uint32_t magic, kind;
  uint64_t inode, number;
  uint32_t text1, text2;
} __attribute__((packed));

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static char tree[PATH_MAX];
static size_t tree_length;
static int journal = -1;
static unsigned char tracked[DESCRIPTORS_MAX]; /* what a descriptor is */

#define REAL(type, name, ...)                                   \
  static type (*real)(__VA_ARGS__);                             \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("WEFT_RECORD_TREE"), *path = getenv("WEFT_RECORD_JOURNAL");
  if (!folder || !path || !realpath(folder, tree)) return;
  tree_length = strlen(tree);
  int low = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  journal = (int)syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, 512);
  syscall(SYS_close, low);
}

static void note(enum kind kind, uint64_t inode, uint64_t number, const void *text1, size_t length1, const void *text2,
                 size_t length2) {
  struct record head = {MAGIC, kind, inode, number, (uint32_t)length1, (uint32_t)length2};
  struct iovec parts[3] = {{&head, sizeof head}, {(void *)text1, length1}, {(void *)text2, length2}};
  size_t length = sizeof head + length1 + length2;
  int kept = errno;
  if ((size_t)syscall(SYS_writev, journal, parts, 3) != length) {
    static const char message[] = "disk_recorder: the journal cannot be written\n";
    syscall(SYS_write, 2, message, sizeof message - 1);
    abort();
  }
  errno = kept;
}

static void note_path(enum kind kind, uint64_t inode, const char *path) {
  note(kind, inode, 0, path, strlen(path), "", 0);
}

static uint64_t inode_of(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static int what_is(int fd) { return journal >= 0 && fd >= 0 && fd < DESCRIPTORS_MAX ? tracked[fd] : OTHER; }

/* The absolute path of a name below a folder's descriptor, without resolving its last part; 0 outside of the tree. */
static int in_tree(int folder, const char *path, char *result) {
  if (journal < 0 || !path) return 0;
  char whole[2 * PATH_MAX], parent[PATH_MAX], link[64];
  if (path[0] == '/') {
    snprintf(whole, sizeof whole, "%s", path);
  } else {
    ssize_t length;
    if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    if ((length = readlink(link, parent, sizeof parent - 1)) < 0) return 0;
    parent[length] = 0;
    snprintf(whole, sizeof whole, "%s/%s", parent, path);
  }
  size_t end = strlen(whole);
  while (end > 1 && whole[end - 1] == '/') whole[--end] = 0;
  char *name = strrchr(whole, '/');
  if (!name) return 0;
  if (name == whole) snprintf(parent, sizeof parent, "/");
  else {
    *name = 0;
    if (!realpath(whole, parent)) return 0;
    *name = '/';
  }
  if (snprintf(result, PATH_MAX, "%s%s", strcmp(parent, "/") ? parent : "", name) >= PATH_MAX) return 0;
  return strncmp(result, tree, tree_length) == 0 && (result[tree_length] == '/' || result[tree_length] == 0);
}

/* --- opening and closing */

static int opened(int folder, const char *path, int flags, mode_t mode) {
  REAL(int, "openat64", int, const char *, int, ...);
  char name[PATH_MAX];
  if (!in_tree(folder, path, name)) {
    int fd = real(folder, path, flags, mode);
    if (fd >= 0 && fd < DESCRIPTORS_MAX) tracked[fd] = OTHER;
    return fd;
  }
  pthread_mutex_lock(&order);
  struct stat status;
  int existed = lstat(name, &status) == 0;
  int fd = real(folder, path, flags, mode);
  if (fd >= 0 && fd < DESCRIPTORS_MAX && fstat(fd, &status) == 0) {
    tracked[fd] = S_ISDIR(status.st_mode) ? FOLDER_OF_TREE : S_ISREG(status.st_mode) ? FILE_OF_TREE : OTHER;
    if (tracked[fd] == FILE_OF_TREE) {
      note_path(existed ? OPEN : CREATE, status.st_ino, name);
      if (existed && flags & O_TRUNC) note(RESIZE, status.st_ino, 0, "", 0, "", 0);
    } else if (tracked[fd] == FOLDER_OF_TREE) {
      note_path(OPEN, status.st_ino, name);
    }
    if ((flags & O_TMPFILE) == O_TMPFILE) note_path(UNSUPPORTED, 0, "O_TMPFILE");
    if (flags & (O_SYNC | O_DSYNC)) note_path(UNSUPPORTED, 0, "O_SYNC");
  }
  pthread_mutex_unlock(&order);
  return fd;
}

static mode_t mode_of(int flags, va_list more) {
  return flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

#define OPEN_NAME(name)                             \
  int name(const char *path, int flags, ...) {      \
    va_list more;                                   \
    va_start(more, flags);                          \
    mode_t mode = mode_of(flags, more);             \
    va_end(more);                                   \
    return opened(AT_FDCWD, path, flags, mode);     \
  }
#define OPENAT_NAME(name)                                   \
  int name(int folder, const char *path, int flags, ...) {  \
    va_list more;                                           \
    va_start(more, flags);                                  \
    mode_t mode = mode_of(flags, more);                     \
    va_end(more);                                           \
    return opened(folder, path, flags, mode);               \
  }
OPEN_NAME(open)
OPEN_NAME(open64)
OPENAT_NAME(openat)
OPENAT_NAME(openat64)

int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd) {
  REAL(int, "close", int);
  if (fd == journal && journal >= 0) return 0;
  if (fd >= 0 && fd < DESCRIPTORS_MAX) tracked[fd] = OTHER;
  return real(fd);
}

/* --- clients */

static int port_of(int fd) {
  struct sockaddr_in peer;
  socklen_t length = sizeof peer;
  return getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.sin_family == AF_INET ? ntohs(peer.sin_port) : 0;
}

/* One record for each part; nobody relies on anything that was sent before its call returns. */
static ssize_t sent(int fd, const struct iovec *parts, int count, ssize_t length) {
  if (what_is(fd) != CLIENT || length <= 0) return length;
  pthread_mutex_lock(&order);
  size_t left = (size_t)length;
  for (int at = 0; at < count && left; at++) {
    size_t taken = parts[at].iov_len < left ? parts[at].iov_len : left;
    if (taken) note(SENT, (uint64_t)port_of(fd), 0, parts[at].iov_base, taken, "", 0);
    left -= taken;
  }
  pthread_mutex_unlock(&order);
  return length;
}

static int accepted(int fd) {
  if (journal >= 0 && fd >= 0 && fd < DESCRIPTORS_MAX) tracked[fd] = CLIENT;
  return fd;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
  REAL(int, "accept4", int, struct sockaddr *, socklen_t *, int);
  return accepted(real(fd, address, length, flags));
}

int accept(int fd, struct sockaddr *address, socklen_t *length) {
  REAL(int, "accept", int, struct sockaddr *, socklen_t *);
  return accepted(real(fd, address, length));
}

ssize_t send(int fd, const void *data, size_t length, int flags) {
  REAL(ssize_t, "send", int, const void *, size_t, int);
  struct iovec part = {(void *)data, length};
  return sent(fd, &part, 1, real(fd, data, length, flags));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  REAL(ssize_t, "sendmsg", int, const struct msghdr *, int);
  return sent(fd, message->msg_iov, (int)message->msg_iovlen, real(fd, message, flags));
}

/* --- bytes */

static ssize_t wrote(int fd, uint64_t offset, const void *data, ssize_t length) {
  if (length > 0) note(WRITE, inode_of(fd), offset, data, (size_t)length, "", 0);
  return length;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
  REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
  if (what_is(fd) != FILE_OF_TREE) return real(fd, data, length, offset);
  pthread_mutex_lock(&order);
  ssize_t result = wrote(fd, (uint64_t)offset, data, real(fd, data, length, offset));
  pthread_mutex_unlock(&order);
  return result;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

ssize_t write(int fd, const void *data, size_t length) {
  REAL(ssize_t, "write", int, const void *, size_t);
  if (what_is(fd) == CLIENT) {
    struct iovec part = {(void *)data, length};
    return sent(fd, &part, 1, real(fd, data, length));
  }
  if (what_is(fd) != FILE_OF_TREE) return real(fd, data, length);
  pthread_mutex_lock(&order);
  ssize_t result = real(fd, data, length);
  wrote(fd, (uint64_t)(lseek(fd, 0, SEEK_CUR) - (result > 0 ? result : 0)), data, result);
  pthread_mutex_unlock(&order);
  return result;
}

static void unsupported(int fd, const char *call) {
  if (what_is(fd) != FILE_OF_TREE) return;
  pthread_mutex_lock(&order);
  note_path(UNSUPPORTED, inode_of(fd), call);
  pthread_mutex_unlock(&order);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  REAL(ssize_t, "writev", int, const struct iovec *, int);
  unsupported(fd, "writev");
  return sent(fd, parts, count, real(fd, parts, count));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
  REAL(ssize_t, "pwritev", int, const struct iovec *, int, off_t);
  unsupported(fd, "pwritev");
  return real(fd, parts, count, offset);
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) {
  REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t);
  unsupported(out, "sendfile");
  return real(out, in, offset, count);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t count) { return sendfile64(out, in, offset, count); }

ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t length, unsigned flags) {
  REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
  unsupported(out, "copy_file_range");
  return real(in, in_at, out, out_at, length, flags);
}

/* SQLite maps its -shm file, which it makes anew after a crash; any other shared mapping would go unseen. */
void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
  REAL(void *, "mmap64", void *, size_t, int, int, int, off64_t);
  if (what_is(fd) == FILE_OF_TREE && protection & PROT_WRITE && (flags & MAP_TYPE) != MAP_PRIVATE) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 4 || memcmp(path + size - 4, "-shm", 4)) unsupported(fd, "mmap");
  }
  return real(address, length, protection, flags, fd, offset);
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
  return mmap64(address, length, protection, flags, fd, offset);
}

int ftruncate64(int fd, off64_t length) {
  REAL(int, "ftruncate64", int, off64_t);
  if (what_is(fd) != FILE_OF_TREE) return real(fd, length);
  pthread_mutex_lock(&order);
  int result = real(fd, length);
  if (result == 0) note(RESIZE, inode_of(fd), (uint64_t)length, "", 0, "", 0);
  pthread_mutex_unlock(&order);
  return result;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
  REAL(int, "posix_fallocate64", int, off64_t, off64_t);
  if (what_is(fd) != FILE_OF_TREE) return real(fd, offset, length);
  pthread_mutex_lock(&order);
  int result = real(fd, offset, length);
  if (result == 0) note(EXTEND, inode_of(fd), (uint64_t)(offset + length), "", 0, "", 0);
  pthread_mutex_unlock(&order);
  return result;
}

int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
  REAL(int, "fallocate64", int, int, off64_t, off64_t);
  if (what_is(fd) != FILE_OF_TREE) return real(fd, mode, offset, length);
  if (mode) unsupported(fd, "fallocate");
  pthread_mutex_lock(&order);
  int result = real(fd, mode, offset, length);
  if (result == 0) note(EXTEND, inode_of(fd), (uint64_t)(offset + length), "", 0, "", 0);
  pthread_mutex_unlock(&order);
  return result;
}

int fallocate(int fd, int mode, off_t offset, off_t length) { return fallocate64(fd, mode, offset, length); }

/* --- syncs */

static int synced(int fd, int (*sync)(int)) {
  int what = what_is(fd);
  if (what != FILE_OF_TREE && what != FOLDER_OF_TREE) return sync(fd);
  uint64_t inode = inode_of(fd);
  pthread_mutex_lock(&order);
  note(what == FILE_OF_TREE ? SYNC_BEGIN : DIRECTORY_SYNC_BEGIN, inode, 0, "", 0, "", 0);
  pthread_mutex_unlock(&order);
  int result = sync(fd);
  if (result == 0) {
    pthread_mutex_lock(&order);
    note(what == FILE_OF_TREE ? SYNC_END : DIRECTORY_SYNC_END, inode, 0, "", 0, "", 0);
    pthread_mutex_unlock(&order);
  }
  return result;
}

int fsync(int fd) {
  REAL(int, "fsync", int);
  return synced(fd, real);
}

int fdatasync(int fd) {
  REAL(int, "fdatasync", int);
  return synced(fd, real);
}

/* --- names */

static int renamed(int from_folder, const char *from, int to_folder, const char *to) {
  REAL(int, "renameat", int, const char *, int, const char *);
  char old[PATH_MAX], new[PATH_MAX];
  int from_tree = in_tree(from_folder, from, old), to_tree = in_tree(to_folder, to, new);
  if (!from_tree && !to_tree) return real(from_folder, from, to_folder, to);
  pthread_mutex_lock(&order);
  int result = real(from_folder, from, to_folder, to);
  if (result == 0) note(from_tree && to_tree ? RENAME : UNSUPPORTED, 0, 0, old, strlen(old), new, strlen(new));
  pthread_mutex_unlock(&order);
  return result;
}

int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
  return flags ? real(a, from, b, to, flags) : renamed(a, from, b, to);
}

static int linked(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  REAL(int, "linkat", int, const char *, int, const char *, int);
  char old[PATH_MAX], new[PATH_MAX];
  int whole = in_tree(from_folder, from, old) & in_tree(to_folder, to, new);
  if (!whole) return real(from_folder, from, to_folder, to, flags);
  pthread_mutex_lock(&order);
  int result = real(from_folder, from, to_folder, to, flags);
  if (result == 0) note(LINK, 0, 0, old, strlen(old), new, strlen(new));
  pthread_mutex_unlock(&order);
  return result;
}

int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) { return linked(a, from, b, to, flags); }

static int unlinked(int folder, const char *path, int flags) {
  REAL(int, "unlinkat", int, const char *, int);
  char name[PATH_MAX];
  if (!in_tree(folder, path, name)) return real(folder, path, flags);
  pthread_mutex_lock(&order);
  int result = real(folder, path, flags);
  if (result == 0) note_path(flags & AT_REMOVEDIR ? REMOVE_DIRECTORY : UNLINK, 0, name);
  pthread_mutex_unlock(&order);
  return result;
}

int unlink(const char *path) { return unlinked(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char *path, int flags) { return unlinked(folder, path, flags); }
int rmdir(const char *path) { return unlinked(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
  int result = unlink(path);
  return result && (errno == EISDIR || errno == EPERM) ? rmdir(path) : result;
}

static int made(int folder, const char *path, mode_t mode) {
  REAL(int, "mkdirat", int, const char *, mode_t);
  char name[PATH_MAX];
  if (!in_tree(folder, path, name)) return real(folder, path, mode);
  pthread_mutex_lock(&order);
  int result = real(folder, path, mode);
  if (result == 0) note_path(MAKE_DIRECTORY, 0, name);
  pthread_mutex_unlock(&order);
  return result;
}

int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { return made(folder, path, mode); }
