/* amqp1load: senders of AMQP 1.0 whose messages are settled by the receiver, for the benchmarks of a broker.
 *
 *     cc -O2 -o amqp1load amqp1load.c
 *
 *     amqp1load [options of load.h] [-A ADDRESS_PREFIX] [-d]
 *
 * Each connection has a session and a link to ADDRESS_PREFIX (topic/) with its name behind it, with -d with dots for
 * slashes. It sends durable messages with a content type, one transfer each, as far as credit and window allow, and
 * counts those that were accepted.
 */
#include "load.h"

enum { SASL_INIT = 0x41, SASL_OUTCOME = 0x44, OPEN = 0x10, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE };
enum { NOTHING = 0x40, TRUE, FALSE, ZERO, BYTE = 0x50, SHORT = 0x60, INT = 0x70, BINARY = 0xa0, TEXT, SYMBOL = 0xa3 };
enum { FIELDS_MAX = 16, ACCEPTED = 0x24, SESSION_WINDOW = 1 << 20 };

static struct {
    const char *prefix;
    bool dots;
} own = {.prefix = "topic/"};

static const char *own_options(void) { return "A:d"; }

static bool take_option(int letter, char *value) {
    switch (letter) {
    case 'A': own.prefix = value; return true;
    case 'd': own.dots = true; return true;
    }
    return false;
}

static uint32_t messages_per_request(void) { return 1; }

/* Values out. */

static void put_byte(struct connection *c, unsigned byte) { put_number(c, byte, 1); }

static void put_int(struct connection *c, uint32_t value) {
    put_byte(c, INT);
    put_number(c, value, 4);
}

static void put_small(struct connection *c, unsigned kind, const char *text) {
    size_t length = strlen(text);
    put_byte(c, kind);
    put_byte(c, length);
    put(c, text, length);
}

/* A list with its descriptor; end_list writes its size. */
static size_t begin_list(struct connection *c, unsigned descriptor, unsigned count) {
    const uint8_t head[] = {0, 0x53, descriptor, 0xd0, 0, 0, 0, 0, 0, 0, 0, count};
    put(c, head, sizeof head);
    return c->out.length - 4;
}

static void end_list(struct connection *c, size_t began) {
    write_number(c->out.bytes + began - 4, c->out.length - began, 4);
}

static size_t begin_frame(struct connection *c, int type) {
    const uint8_t head[] = {0, 0, 0, 0, 2, type, 0, 0};
    put(c, head, sizeof head);
    return c->out.length - sizeof head;
}

static void end_frame(struct connection *c, size_t began) {
    write_number(c->out.bytes + began, c->out.length - began, 4);
}

static void begin_protocol(struct connection *c) {
    put(c, "AMQP\3\1\0\0", 8);
    size_t frame = begin_frame(c, 1), list = begin_list(c, SASL_INIT, 1);
    put_small(c, SYMBOL, "ANONYMOUS");
    end_list(c, list);
    end_frame(c, frame);
}

static void put_opening(struct connection *c) {
    char address[256], id[32];
    int length = snprintf(address, sizeof address, "%s%s", own.prefix, c->name);
    for (int i = strlen(own.prefix); own.dots && i < length; i++)
        if (address[i] == '/') address[i] = '.';
    snprintf(id, sizeof id, "amqp1load-%05d", (int)(c - connections));
    put(c, "AMQP\0\1\0\0", 8);
    size_t frame = begin_frame(c, 0), list = begin_list(c, OPEN, 3);
    put_small(c, TEXT, id);
    put_byte(c, NOTHING); /* hostname */
    put_int(c, 64 << 10); /* max-frame-size */
    end_list(c, list);
    end_frame(c, frame);
    frame = begin_frame(c, 0), list = begin_list(c, BEGIN, 4);
    put_byte(c, NOTHING); /* remote-channel */
    put_byte(c, ZERO);    /* next-outgoing-id */
    put_int(c, SESSION_WINDOW);
    put_int(c, SESSION_WINDOW);
    end_list(c, list);
    end_frame(c, frame);
    frame = begin_frame(c, 0), list = begin_list(c, ATTACH, 10);
    put_small(c, TEXT, id);
    put_byte(c, ZERO);  /* handle */
    put_byte(c, FALSE); /* role: sender */
    put(c, "\x50\0\x50\0", 4); /* unsettled, settled first by the receiver */
    put(c, "\0\x53\x28\x45", 4); /* source */
    size_t target = begin_list(c, 0x29, 1);
    put_small(c, TEXT, address);
    end_list(c, target);
    put_byte(c, NOTHING);
    put_byte(c, NOTHING);
    put_byte(c, ZERO); /* initial-delivery-count */
    end_list(c, list);
    end_frame(c, frame);
}

static void put_request(struct connection *c) {
    uint32_t length, id = c->tag - 1;
    const char *payload = next_payload(c, &length);
    size_t frame = begin_frame(c, 0), list = begin_list(c, TRANSFER, 6);
    put_byte(c, ZERO); /* handle */
    put_int(c, id);
    put_byte(c, BINARY);
    put_byte(c, 4);
    put_number(c, id, 4);
    put_byte(c, ZERO);  /* message-format */
    put_byte(c, FALSE); /* settled */
    put_byte(c, FALSE); /* more */
    end_list(c, list);
    list = begin_list(c, 0x70, 1);
    put_byte(c, TRUE); /* durable */
    end_list(c, list);
    list = begin_list(c, 0x73, 7);
    for (int i = 0; i < 6; i++) put_byte(c, NOTHING);
    put_small(c, SYMBOL, "application/json");
    end_list(c, list);
    put(c, "\0\x53\x75\xb0", 4);
    put_number(c, length, 4);
    put(c, payload, length);
    end_frame(c, frame);
}

static void put_goodbye(struct connection *c) {
    size_t frame = begin_frame(c, 0);
    put(c, "\0\x53\x18\x45", 4);
    end_frame(c, frame);
}

/* Values in. */

static size_t value_size(const uint8_t *at) {
    size_t described = 0;
    if (!*at) {
        described = 1 + value_size(at + 1);
        at += described;
    }
    static const uint8_t widths[16] = {[5] = 1, [6] = 2, [7] = 4, [8] = 8, [9] = 16};
    int group = *at >> 4;
    if (group >= 10) return described + 1 + (group % 2 ? 4 + number(at + 1, 4) : 1u + at[1]);
    return described + 1 + widths[group];
}

static uint32_t integer(const uint8_t *at, uint32_t otherwise) {
    if (!at || *at == NOTHING) return otherwise;
    return *at == ZERO ? 0 : number(at + 1, *at >> 4 == 5 ? 1 : 4);
}

/* Places of a list's fields; NULL for those that it has not. */
static void fields_of(const uint8_t *at, const uint8_t *fields[FIELDS_MAX]) {
    memset(fields, 0, FIELDS_MAX * sizeof *fields);
    int count = *at == 0xc0 ? at[2] : *at == 0xd0 ? (int)number(at + 5, 4) : 0;
    at += *at == 0xc0 ? 3 : 9;
    for (int i = 0; i < count && i < FIELDS_MAX; i++) {
        fields[i] = at;
        at += value_size(at);
    }
}

/* What of link and session may still be sent. */
static void on_flow(struct connection *c, const uint8_t *fields[FIELDS_MAX]) {
    c->window_end = (uint64_t)integer(fields[0], 0) + integer(fields[1], 0);
    if (fields[4] && *fields[4] != NOTHING) c->credit_end = (uint64_t)integer(fields[5], 0) + integer(fields[6], 0);
    uint64_t limit = c->window_end < c->credit_end ? c->window_end : c->credit_end;
    c->credit = limit > c->tag ? limit - c->tag : 0;
    if (c->credit && c->state == CONNECTING) become_ready(c);
}

static void on_performative(struct connection *c, const uint8_t *body) {
    const uint8_t *fields[FIELDS_MAX];
    if (body[0] || body[1] != 0x53) {
        lose(c, "a performative that is not understood");
        return;
    }
    fields_of(body + 3, fields);
    switch (body[2]) {
    case SASL_OUTCOME:
        if (integer(fields[0], 1)) lose(c, "not let in");
        else put_opening(c);
        break;
    case FLOW: on_flow(c, fields); break;
    case DISPOSITION: {
        uint32_t first = integer(fields[1], 0), last = integer(fields[2], first);
        bool taken = fields[4] && !fields[4][0] && fields[4][2] == ACCEPTED;
        for (uint64_t id = first; id <= last && c->state != CLOSED; id++) answer(c, id + 1, taken);
        break;
    }
    case DETACH:
    case END:
    case CLOSE: lose(c, "closed by the broker with an error, or detached"); break;
    }
}

static size_t take(struct connection *c, const uint8_t *bytes, size_t length) {
    size_t taken = 0;
    while (c->state != CLOSED && length - taken >= 8) {
        const uint8_t *frame = bytes + taken;
        if (!memcmp(frame, "AMQP", 4)) {
            taken += 8;
            continue;
        }
        size_t size = number(frame, 4);
        if (length - taken < size) break;
        if (size > (size_t)frame[4] * 4) on_performative(c, frame + frame[4] * 4);
        taken += size;
    }
    return taken;
}
