/* httpload: POSTs over connections that are kept, for the benchmarks of HTTP.
 *
 *     cc -O2 -o httpload httpload.c
 *
 *     httpload [options of load.h] [-u PATH] [-b MESSAGES] [-n]
 *
 * Posts to PATH (/v1/streams/load) with the connection's name behind it, one message in each request. -b: so many
 * messages in a request, as a JSON array, or line by line with -n. Rates and times of the server are for each message,
 * latencies for each request.
 */
#include "load.h"

static struct {
    const char *path;
    int batch;
    bool lines;
} own = {.path = "/v1/streams/load", .batch = 1};

static const char *own_options(void) { return "u:b:n"; }

static bool take_option(int letter, char *value) {
    switch (letter) {
    case 'u': own.path = value; return true;
    case 'b': own.batch = atoi(value); return true;
    case 'n': own.lines = true; return true;
    }
    return false;
}

static uint32_t messages_per_request(void) { return own.batch; }

static void begin_protocol(struct connection *c) {
    /* There is nothing to agree on; connect() has waited for the server's kernel. */
    become_ready(c);
}

static void put_goodbye(struct connection *c) { (void)c; }

static void put_request(struct connection *c) {
    static struct buffer body;
    static struct connection scratch;
    scratch.out = body;
    scratch.out.length = 0;
    bool array = own.batch > 1 && !own.lines;
    for (int i = 0; i < own.batch; i++) {
        uint32_t length;
        const char *payload = next_payload(c, &length);
        if (array) put(&scratch, i ? "," : "[", 1);
        put(&scratch, payload, length);
        if (own.lines) put(&scratch, "\n", 1);
    }
    if (array) put(&scratch, "]", 1);
    body = scratch.out;
    char head[512];
    int length = snprintf(head, sizeof head,
                          "POST %s/%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: httpload\r\nContent-Type: %s\r\n"
                          "Content-Length: %zu\r\n\r\n",
                          own.path, c->name, options.port, own.lines ? "application/x-ndjson" : "application/json",
                          body.length);
    put(c, head, length);
    put(c, body.bytes, body.length);
}

/* The length of an answer's body: of its Content-Length, else none. */
static size_t body_length(const char *head, const char *end) {
    static const char name[] = "\r\ncontent-length:";
    for (const char *at = head; at + sizeof name < end; at++)
        if (*at == '\r' && !strncasecmp(at, name, sizeof name - 1)) return strtoul(at + sizeof name - 1, NULL, 10);
    return 0;
}

static size_t take(struct connection *c, const uint8_t *bytes, size_t length) {
    size_t taken = 0;
    while (c->state != CLOSED && taken < length) {
        const char *head = (const char *)bytes + taken, *end = memmem(head, length - taken, "\r\n\r\n", 4);
        if (!end) break;
        size_t size = end + 4 - head + body_length(head, end + 4);
        if (length - taken < size) break;
        if (size < 16 || head[9] != '2') {
            if (refused < 3) fprintf(stderr, "%.*s\n", (int)(size < 400 ? size : 400), head);
            answer(c, c->answered + 1, false);
        } else {
            answer(c, c->answered + 1, true);
        }
        taken += size;
    }
    return taken;
}
