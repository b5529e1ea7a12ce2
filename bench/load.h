/* What the load generators of AMQP and HTTP share: one thread (epoll), windows or fixed rates, latencies, figures.
 *
 * A generator defines the functions below "What a protocol gives" and includes this file; main is here. Common options:
 *
 *     -f PAYLOADS [-h 127.0.0.1] [-p PORT] [-c CONNECTIONS] [-w WINDOW] [-r MESSAGES_PER_S] [-t SECONDS] [-W WARMUP_S]
 *     [-S CONSUMERS] [-T NAME_PREFIX] [-N NAMES] [-P PID,...]
 *
 * Payloads are the lines of a file. Every connection goes round them from a place of its own, so that no two messages
 * that a server gets one after the other are alike. Connection 17 has the name plant/line-1/m-00017/telemetry; with -N
 * the connections share that many names.
 *
 * Closed loop: each connection keeps WINDOW unanswered requests in flight. Open loop (-r): each connection sends at
 * equal intervals, beginning at a moment of chance, the same in each run; latency counts from when a request was due.
 * What has no answer DRAIN_S after the end counts as that late.
 *
 * The answer is one JSON object. The status is 3 when a connection failed, 1 when not all could connect.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define CONNECT_S_MAX 60
#define CONNECTING_MAX 50 /* at once: a fleet that comes back, not a flood of SYNs */
#define DRAIN_S 5
#define DUE_AT_ONCE_MAX 256 /* then answers are read before more is sent */
#define INPUT_BYTES (256 << 10)
#define PIDS_MAX 64

enum state { CONNECTING, READY, CLOSED };

struct buffer {
    uint8_t *bytes;
    size_t length, room;
};

struct connection {
    int fd, step; /* step: how far the opening has come, for the protocol */
    enum state state;
    bool consumer, wants_write;
    uint32_t in_flight, line, credit, unsettled; /* credit: messages that the server lets us send, where it says so */
    uint64_t window_end, credit_end;
    uint64_t tag, answered, *since;              /* since when each request is in flight, by number; 0: answered */
    struct buffer out, rest;                     /* rest: the beginning of a frame that has not come whole */
    size_t written;
    char name[128];
    size_t name_length;
};

static struct {
    const char *host, *payloads, *prefix;
    int port, publishers, window, consumers, names, pids[PIDS_MAX], pid_count;
    double seconds, warmup, rate;
} options = {.host = "127.0.0.1", .prefix = "plant", .publishers = 10, .window = 1, .seconds = 5, .warmup = 1};

static struct connection *connections;
static int epoll, total, ready, connecting, alive;
static const char **lines;
static uint32_t *line_lengths, line_count, since_mask;
static uint64_t errors, refused, sent, sent_payload, acked, received, unanswered, arrived;
static uint64_t measured, measured_received, skipped, from, to, last_received;
static bool measuring, stopping, publishing; /* publishing: not before everyone is connected */
static uint8_t input[INPUT_BYTES];

/* What a protocol gives. */

static void begin_protocol(struct connection *c);                                     /* say the first words */
static size_t take(struct connection *c, const uint8_t *bytes, size_t length);        /* handle whole frames */
static void put_request(struct connection *c);                                        /* of payload c->line on */
static void put_goodbye(struct connection *c);

static bool take_option(int letter, char *value);
static const char *own_options(void);
static uint32_t messages_per_request(void);

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * SECOND_NS + at.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(2);
}

/* Histogram: 64 steps for each power of two nanoseconds, an error below 1.6 per cent. */

#define STEPS 64
struct histogram {
    uint64_t counts[64 * STEPS], count, sum, max;
};
static struct histogram latencies, lateness;

static void record(struct histogram *h, uint64_t value) {
    int place = value;
    if (value >= STEPS) {
        int power = 63 - __builtin_clzll(value);
        place = (power - 5) * STEPS + ((value >> (power - 6)) & (STEPS - 1));
    }
    h->counts[place]++;
    h->count++;
    h->sum += value;
    if (value > h->max) h->max = value;
}

static double quantile_ms(const struct histogram *h, double quantile) {
    uint64_t target = quantile * h->count, seen = 0;
    for (int i = 0; i < 64 * STEPS; i++) {
        seen += h->counts[i];
        if (seen <= target) continue;
        int power = i / STEPS + 5;
        uint64_t value = i < STEPS ? (uint64_t)i : (uint64_t)(STEPS + i % STEPS) << (power - 6);
        return (value < h->max ? value : h->max) / 1e6;
    }
    return h->max / 1e6;
}

/* Bytes out. */

static void put(struct connection *c, const void *bytes, size_t length) {
    struct buffer *out = &c->out;
    if (out->length + length > out->room) {
        out->room = 2 * (out->length + length);
        out->bytes = realloc(out->bytes, out->room);
        if (!out->bytes) fail("realloc");
    }
    memcpy(out->bytes + out->length, bytes, length);
    out->length += length;
}

static inline void put_number(struct connection *c, uint64_t value, int bytes) {
    uint8_t found[8];
    for (int i = 0; i < bytes; i++) found[i] = value >> 8 * (bytes - 1 - i);
    put(c, found, bytes);
}

static inline void write_number(uint8_t *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = value >> 8 * (bytes - 1 - i);
}

static inline uint64_t number(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    while (bytes--) value = value << 8 | *at++;
    return value;
}

static void want_write(struct connection *c, bool wanted) {
    if (c->wants_write == wanted) return;
    c->wants_write = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

static void lose(struct connection *c, const char *why) {
    if (c->state == CLOSED) return;
    if (errors++ < 5) fprintf(stderr, "connection %d lost: %s (%s)\n", (int)(c - connections), why, strerror(errno));
    if (c->state != READY) connecting--;
    close(c->fd);
    c->state = CLOSED;
    unanswered -= c->in_flight;
    alive--;
}

static void flush(struct connection *c) {
    while (c->written < c->out.length) {
        ssize_t n = send(c->fd, c->out.bytes + c->written, c->out.length - c->written, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            want_write(c, true);
            return;
        }
        if (n <= 0) {
            lose(c, "write");
            return;
        }
        c->written += n;
    }
    c->written = c->out.length = 0;
    want_write(c, false);
}

/* Requests and their answers. */

static inline void become_ready(struct connection *c) {
    c->state = READY;
    connecting--;
    ready++;
}

static void request(struct connection *c, uint64_t since) {
    c->since[++c->tag & since_mask] = since;
    c->in_flight++;
    unanswered++;
    put_request(c);
}

static inline const char *next_payload(struct connection *c, uint32_t *length) {
    const char *found = lines[c->line];
    *length = line_lengths[c->line];
    c->line = c->line + 1 == line_count ? 0 : c->line + 1;
    sent++;
    sent_payload += *length;
    return found;
}

/* Request `tag` is answered. One that was refused has no latency. */
static void answer(struct connection *c, uint64_t tag, bool taken) {
    uint64_t *since = &c->since[tag & since_mask], began = *since;
    if (!began || tag > c->tag) {
        lose(c, "an answer to what was not asked");
        return;
    }
    *since = 0;
    while (c->answered < c->tag && !c->since[(c->answered + 1) & since_mask]) c->answered++;
    c->in_flight--;
    unanswered--;
    if (!taken) {
        refused++;
        return;
    }
    acked += messages_per_request();
    if (!(options.rate ? began >= from && began < to : measuring)) return;
    measured += messages_per_request();
    record(&latencies, arrived > began ? arrived - began : 0);
}

static void fill(struct connection *c) {
    if (c->state != READY || c->consumer || stopping || options.rate) return;
    while (c->in_flight < (uint32_t)options.window && c->credit) {
        c->credit--;
        request(c, now());
    }
}

/* Reading. */

static void keep_rest(struct connection *c, const uint8_t *bytes, size_t length) {
    if (length > c->rest.room) {
        c->rest.room = length;
        c->rest.bytes = realloc(c->rest.bytes, length);
        if (!c->rest.bytes) fail("realloc");
    }
    if (length) memcpy(c->rest.bytes, bytes, length);
    c->rest.length = length;
}

static void on_readable(struct connection *c) {
    for (bool more = true; more;) {
        size_t have = c->rest.length;
        if (have) memcpy(input, c->rest.bytes, have);
        ssize_t n = recv(c->fd, input + have, INPUT_BYTES - have, 0);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            lose(c, n ? "read" : "closed by the server");
            return;
        }
        arrived = now();
        more = (size_t)n == INPUT_BYTES - have;
        have += n;
        size_t taken = take(c, input, have);
        if (c->state == CLOSED) return;
        keep_rest(c, input + taken, have - taken);
    }
    if (publishing) fill(c);
    flush(c);
}

static void handle_events(uint64_t wait_ns) {
    struct epoll_event events[256];
    struct timespec wait = {wait_ns / SECOND_NS, wait_ns % SECOND_NS};
    int n = epoll_pwait2(epoll, events, 256, &wait, NULL);
    for (int i = 0; i < n; i++) {
        struct connection *c = events[i].data.ptr;
        if (c->state != CLOSED && events[i].events & EPOLLOUT) flush(c);
        if (c->state != CLOSED && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c);
    }
}

/* What the system tells of the server. */

static double processor_seconds(int pid) {
    clockid_t id;
    struct timespec used;
    if (clock_getcpuclockid(pid, &id) || clock_gettime(id, &used)) return 0;
    return used.tv_sec + used.tv_nsec / 1e9;
}

static uint64_t of_server(const char *key) {
    uint64_t sum = 0;
    char path[64], line[256];
    for (int i = 0; i < options.pid_count; i++) {
        snprintf(path, sizeof path, "/proc/%d/status", options.pids[i]);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f))
            if (!strncmp(line, key, strlen(key))) sum += strtoull(line + strlen(key), NULL, 10);
        if (f) fclose(f);
    }
    return sum;
}

struct usage {
    uint64_t at;
    double server, own;
};

static struct usage usage(void) {
    struct usage u = {.at = now(), .own = processor_seconds(getpid())};
    for (int i = 0; i < options.pid_count; i++) u.server += processor_seconds(options.pids[i]);
    return u;
}

/* The fleet's schedule: request k is of connection order[k % publishers]. */

struct turn {
    double offset_ns;
    int connection;
};
static struct turn *turns;
static uint64_t start, next_request;

static int earlier(const void *a, const void *b) {
    double difference = ((const struct turn *)a)->offset_ns - ((const struct turn *)b)->offset_ns;
    return (difference > 0) - (difference < 0);
}

static double interval_ns(void) { return options.publishers * messages_per_request() / options.rate * 1e9; }

static void make_schedule(void) {
    turns = calloc(options.publishers, sizeof *turns);
    uint64_t chance = 88172645463325252ull; /* xorshift64: the same fleet in each run */
    for (int i = 0; i < options.publishers; i++) {
        chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
        turns[i] = (struct turn){(chance >> 11) * 0x1p-53 * interval_ns(), options.consumers + i};
    }
    qsort(turns, options.publishers, sizeof *turns, earlier);
}

static uint64_t due(uint64_t which) {
    return start + (uint64_t)(which / options.publishers * interval_ns() + turns[which % options.publishers].offset_ns);
}

/* Send what is due; nanoseconds until the next is. */
static uint64_t send_due(void) {
    for (int i = 0; i < DUE_AT_ONCE_MAX; i++) {
        uint64_t since = due(next_request), t = now();
        if (since > t) return since - t;
        struct connection *c = &connections[turns[next_request++ % options.publishers].connection];
        bool counts = since >= from && since < to;
        if (c->state != READY || !c->credit || c->in_flight > since_mask / 2) {
            skipped += counts;
            continue;
        }
        c->credit--;
        request(c, since);
        flush(c);
        if (counts) record(&lateness, now() - since);
    }
    return 0;
}

/* Parts of the run. */

static void load_payloads(void) {
    int fd = open(options.payloads, O_RDONLY);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) || !facts.st_size) fail(options.payloads);
    const char *bytes = mmap(NULL, facts.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (bytes == MAP_FAILED) fail("mmap");
    const char *end = bytes + facts.st_size;
    uint32_t room = 0;
    for (const char *at = bytes, *stop; at < end; at = stop + 1) {
        stop = memchr(at, '\n', end - at);
        if (!stop) stop = end;
        if (line_count == room) {
            room = room ? 2 * room : 4096;
            lines = realloc(lines, room * sizeof *lines);
            line_lengths = realloc(line_lengths, room * sizeof *line_lengths);
        }
        lines[line_count] = at;
        line_lengths[line_count++] = stop - at;
    }
}

static void open_connection(int index) {
    struct connection *c = &connections[index];
    int publisher = index - options.consumers;
    c->consumer = publisher < 0;
    c->credit = UINT32_MAX;
    if (!c->consumer) {
        int machine = options.names ? publisher % options.names : publisher;
        c->name_length = snprintf(c->name, sizeof c->name, "%s/line-%d/m-%05d/telemetry", options.prefix, machine % 8,
                                  machine);
        c->line = (uint64_t)publisher * line_count / options.publishers;
        c->since = calloc(since_mask + 1, sizeof *c->since);
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(options.port)};
    inet_pton(AF_INET, options.host, &address.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
    c->state = CONNECTING;
    connecting++;
    alive++;
    begin_protocol(c);
    flush(c);
}

static void connect_all(void) {
    uint64_t deadline = now() + CONNECT_S_MAX * SECOND_NS;
    for (int opened = 0; ready < total;) {
        while (opened < total && connecting < CONNECTING_MAX) open_connection(opened++);
        if (errors || now() > deadline) {
            fprintf(stderr, "only %d of %d connected\n", ready, total);
            exit(1);
        }
        handle_events(SECOND_NS / 10);
    }
}

static bool publishers_alive(void) { return alive > options.consumers || !options.publishers; }
static bool all_sent(void) { return !options.rate || due(next_request) >= to; }

static void run(struct usage *before, struct usage *after) {
    start = now();
    from = start + (uint64_t)(options.warmup * 1e9);
    to = from + (uint64_t)(options.seconds * 1e9);
    publishing = true;
    for (int i = options.consumers; i < total; i++) {
        fill(&connections[i]);
        if (connections[i].state == READY) flush(&connections[i]);
    }
    while (publishers_alive()) {
        uint64_t t = now();
        if (!measuring && t >= from) {
            *before = usage();
            measuring = true;
        }
        if (measuring && t >= to && all_sent()) break;
        /* Consumers alone empty a queue: what follows the last delivery is no part of that. */
        if (!options.publishers && received && t > last_received + SECOND_NS / 2) break;
        uint64_t wait = options.rate ? send_due() : SECOND_NS / 100;
        handle_events(wait < SECOND_NS / 100 ? wait : SECOND_NS / 100);
    }
    *after = usage();
    if (!options.publishers && received) after->at = last_received;
    measuring = false;
    stopping = true;
    if (!options.rate) return;
    uint64_t deadline = now() + DRAIN_S * SECOND_NS;
    while (unanswered && publishers_alive() && now() < deadline) handle_events(SECOND_NS / 100);
    for (uint64_t i = 0; i < unanswered + skipped; i++) record(&latencies, DRAIN_S * SECOND_NS);
}

static void close_all(void) {
    for (int i = 0; i < total; i++) {
        struct connection *c = &connections[i];
        if (c->state == CLOSED) continue;
        if (!c->out.length) put_goodbye(c);
        flush(c);
        close(c->fd);
    }
}

static void report(double connect_s, struct usage before, struct usage after) {
    double seconds = (after.at - before.at) / 1e9, server = after.server - before.server;
    uint64_t handled = options.publishers ? measured : measured_received, messages = handled ? handled : 1;
    printf("{\"connect_s\":%.3f,\"seconds\":%.3f,\"messages\":%lu,\"messages_per_s\":%.1f", connect_s, seconds, measured,
           measured / seconds);
    printf(",\"ack_ms\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f,\"mean\":%.3f}",
           quantile_ms(&latencies, .5), quantile_ms(&latencies, .9), quantile_ms(&latencies, .99),
           quantile_ms(&latencies, .999), latencies.max / 1e6,
           latencies.count ? latencies.sum / 1e6 / latencies.count : 0);
    if (options.rate) printf(",\"late_ms_p99\":%.3f", quantile_ms(&lateness, .99));
    if (options.consumers) printf(",\"received_per_s\":%.1f", measured_received / seconds);
    if (options.pid_count) {
        printf(",\"server_cpu\":%.4f,\"server_us_per_message\":%.3f", server / seconds, server * 1e6 / messages);
        printf(",\"server_rss_kib\":%lu,\"server_peak_rss_kib\":%lu", of_server("VmRSS:"), of_server("VmHWM:"));
    }
    printf(",\"generator_cpu\":%.3f,\"sent\":%lu,\"sent_payload_bytes\":%lu,\"acked\":%lu,\"received\":%lu,"
           "\"refused\":%lu,\"unacked\":%lu,\"errors\":%lu}\n",
           (after.own - before.own) / seconds, sent, sent_payload, acked, received, refused,
           options.rate ? unanswered + skipped : 0, errors);
}

static void parse(int count_of, char **arguments) {
    char letters[128];
    snprintf(letters, sizeof letters, "f:h:p:c:w:r:t:W:S:T:N:P:%s", own_options());
    for (int option; (option = getopt(count_of, arguments, letters)) != -1;) {
        switch (option) {
        case 'f': options.payloads = optarg; break;
        case 'h': options.host = optarg; break;
        case 'p': options.port = atoi(optarg); break;
        case 'c': options.publishers = atoi(optarg); break;
        case 'w': options.window = atoi(optarg); break;
        case 'r': options.rate = atof(optarg); break;
        case 't': options.seconds = atof(optarg); break;
        case 'W': options.warmup = atof(optarg); break;
        case 'S': options.consumers = atoi(optarg); break;
        case 'T': options.prefix = optarg; break;
        case 'N': options.names = atoi(optarg); break;
        case 'P':
            for (char *pid = strtok(optarg, ","); pid && options.pid_count < PIDS_MAX; pid = strtok(NULL, ","))
                options.pids[options.pid_count++] = atoi(pid);
            break;
        default:
            if (!take_option(option, optarg)) exit(2);
        }
    }
    if (!options.payloads || !options.port) {
        fprintf(stderr, "give -f PAYLOADS, a file of one payload a line, and -p PORT\n");
        exit(2);
    }
}

int main(int argument_count, char **arguments) {
    parse(argument_count, arguments);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    load_payloads();
    uint32_t in_flight_max = options.window;
    if (options.rate) in_flight_max = options.publishers < 1024 ? 8192 : 64;
    since_mask = 15;
    while (since_mask < 2 * in_flight_max) since_mask = 2 * since_mask + 1;
    total = options.publishers + options.consumers;
    connections = calloc(total, sizeof *connections);
    epoll = epoll_create1(0);
    if (options.rate) make_schedule();
    uint64_t began = now();
    connect_all();
    double connect_s = (now() - began) / 1e9;
    struct usage before = {0}, after = {0};
    run(&before, &after);
    report(connect_s, before, after);
    close_all();
    return errors ? 3 : 0;
}
