/* natsload: publishes to a JetStream stream of a NATS server, for the benchmark beside it.
 *
 *     cc -O2 -o natsload natsload.c
 *
 *     natsload [options of load.h]
 *
 * Publishes to the connection's name as a subject (plant.line-1.m-00017.telemetry), which a stream of the server has to
 * take, with an inbox for the answer: the stream answers when it has stored the message. An answer with an error counts
 * as refused.
 */
#include "load.h"

static const char *own_options(void) { return ""; }

static bool take_option(int letter, char *value) {
    (void)letter, (void)value;
    return false;
}

static uint32_t messages_per_request(void) { return 1; }

static void begin_protocol(struct connection *c) {
    char text[256];
    for (size_t i = 0; i < c->name_length; i++)
        if (c->name[i] == '/') c->name[i] = '.';
    int length = snprintf(text, sizeof text,
                          "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"c\",\"protocol\":1}\r\n"
                          "SUB _I.%d.%d.* 1\r\nPING\r\n", getpid(), (int)(c - connections));
    put(c, text, length);
}

static void put_goodbye(struct connection *c) { (void)c; }

static void put_request(struct connection *c) {
    char head[256];
    uint32_t length;
    const char *payload = next_payload(c, &length);
    int size = snprintf(head, sizeof head, "PUB %.*s _I.%d.%d.%lu %u\r\n", (int)c->name_length, c->name, getpid(),
                        (int)(c - connections), c->tag, length);
    put(c, head, size);
    put(c, payload, length);
    put(c, "\r\n", 2);
}

/* An answer: MSG _I.PROCESS.CONNECTION.TAG 1 LENGTH, and so many bytes of JSON. Return its size; 0 while it is not
 * whole. The process's number tells it from answers that a generator before this one has left behind. */
static size_t take_answer(struct connection *c, const char *line, const char *end, size_t left) {
    unsigned long tag, length;
    if (sscanf(line, "MSG _I.%*d.%*d.%lu 1 %lu", &tag, &length) != 2) {
        lose(c, "not an answer of a stream");
        return 0;
    }
    size_t size = end + 2 - line + length + 2;
    if (left < size) return 0;
    bool taken = !memmem(end + 2, length, "\"error\"", 7);
    if (!taken && refused < 3) fprintf(stderr, "%.*s\n", (int)length, end + 2);
    answer(c, tag, taken);
    return size;
}

static size_t take(struct connection *c, const uint8_t *bytes, size_t length) {
    size_t taken = 0;
    while (c->state != CLOSED && taken < length) {
        const char *line = (const char *)bytes + taken, *end = memmem(line, length - taken, "\r\n", 2);
        if (!end) break;
        size_t size = end + 2 - line;
        if (!strncmp(line, "MSG ", 4)) {
            if (!(size = take_answer(c, line, end, length - taken))) break;
        } else if (!strncmp(line, "PING", 4)) {
            put(c, "PONG\r\n", 6);
        } else if (!strncmp(line, "PONG", 4)) {
            if (c->state == CONNECTING) become_ready(c);
        } else if (!strncmp(line, "-ERR", 4)) {
            lose(c, "the server answers with an error");
        }
        taken += size;
    }
    return taken;
}
