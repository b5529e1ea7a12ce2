/* amqpload: AMQP 0-9-1 publishers with confirms, and consumers, for the benchmarks of a broker.
 *
 *     cc -O2 -o amqpload amqpload.c
 *
 *     amqpload [options of load.h] [-x EXCHANGE] [-k ROUTING_KEY] [-q QUEUE] [-Q PREFETCH] [-U] [-M]
 *
 * Publishers send persistent messages (delivery-mode 2) with content-type, app-id and a header to EXCHANGE (amq.topic),
 * by the routing key plant.line-1.m-00017.telemetry, or by ROUTING_KEY. -U: every message has a message-id of its own.
 * -M: mandatory. Consumers take QUEUE with a prefetch of PREFETCH and acknowledge each half of it at once.
 */
#include "load.h"

enum { METHOD = 1, HEADER, BODY, HEARTBEAT = 8, END = 0xCE };
enum {
    CONNECTION_START = 10 << 16 | 10, START_OK, TUNE = 10 << 16 | 30, TUNE_OK, CONNECTION_OPEN = 10 << 16 | 40,
    CONNECTION_OPEN_OK, CONNECTION_CLOSE = 10 << 16 | 50, CHANNEL_OPEN = 20 << 16 | 10, CHANNEL_OPEN_OK,
    CHANNEL_CLOSE = 20 << 16 | 40, QOS = 60 << 16 | 10, QOS_OK, CONSUME = 60 << 16 | 20, CONSUME_OK,
    PUBLISH = 60 << 16 | 40, RETURN = 60 << 16 | 50, DELIVER = 60 << 16 | 60, ACK = 60 << 16 | 80,
    NACK = 60 << 16 | 120, CONFIRM_SELECT = 85 << 16 | 10, CONFIRM_SELECT_OK,
};

static struct {
    const char *exchange, *key, *queue;
    int prefetch;
    bool unique, mandatory;
} own = {.exchange = "amq.topic", .queue = "load", .prefetch = 100};

static const char *own_options(void) { return "x:k:q:Q:UM"; }

static bool take_option(int letter, char *value) {
    switch (letter) {
    case 'x': own.exchange = value; return true;
    case 'k': own.key = value; return true;
    case 'q': own.queue = value; return true;
    case 'Q': own.prefetch = atoi(value); return true;
    case 'U': own.unique = true; return true;
    case 'M': own.mandatory = true; return true;
    }
    return false;
}

static uint32_t messages_per_request(void) { return 1; }

/* Frames out. */

static size_t begin_frame(struct connection *c, int type, int channel) {
    put_number(c, type, 1);
    put_number(c, channel, 2);
    put_number(c, 0, 4);
    return c->out.length;
}

static void end_frame(struct connection *c, size_t began) {
    write_number(c->out.bytes + began - 4, c->out.length - began, 4);
    put_number(c, END, 1);
}

static size_t begin_method(struct connection *c, int channel, uint32_t method) {
    size_t began = begin_frame(c, METHOD, channel);
    put_number(c, method, 4);
    return began;
}

static void put_short(struct connection *c, const char *text) {
    size_t length = strlen(text);
    put_number(c, length, 1);
    put(c, text, length);
}

static void begin_protocol(struct connection *c) {
    /* The name of a connection becomes its routing key. */
    if (own.key) c->name_length = snprintf(c->name, sizeof c->name, "%s", own.key);
    for (char *at = c->name; *at; at++)
        if (*at == '/' && !own.key) *at = '.';
    put(c, "AMQP\0\0\11\1", 8);
}

static void put_start_ok(struct connection *c) {
    size_t began = begin_method(c, 0, START_OK);
    put_number(c, 0, 4); /* no properties */
    put_short(c, "PLAIN");
    put_number(c, 12, 4);
    put(c, "\0guest\0guest", 12);
    put_short(c, "en_US");
    end_frame(c, began);
}

static void put_tuned_and_open(struct connection *c, uint32_t frame_max) {
    size_t began = begin_method(c, 0, TUNE_OK);
    put_number(c, 1, 2);
    put_number(c, frame_max, 4);
    put_number(c, 0, 2); /* no heartbeats */
    end_frame(c, began);
    began = begin_method(c, 0, CONNECTION_OPEN);
    put_short(c, "/");
    put_number(c, 0, 2);
    end_frame(c, began);
}

static void put_channel_open(struct connection *c) {
    size_t began = begin_method(c, 1, CHANNEL_OPEN);
    put_number(c, 0, 1);
    end_frame(c, began);
}

static void put_confirm_select(struct connection *c) {
    size_t began = begin_method(c, 1, CONFIRM_SELECT);
    put_number(c, 0, 1);
    end_frame(c, began);
}

static void put_qos_and_consume(struct connection *c) {
    size_t began = begin_method(c, 1, QOS);
    put_number(c, 0, 4);
    put_number(c, own.prefetch, 2);
    put_number(c, 0, 1);
    end_frame(c, began);
    began = begin_method(c, 1, CONSUME);
    put_number(c, 0, 2);
    put_short(c, own.queue);
    put_short(c, "");
    put_number(c, 0, 1);
    put_number(c, 0, 4);
    end_frame(c, began);
}

static void put_request(struct connection *c) {
    uint32_t length;
    const char *payload = next_payload(c, &length);
    size_t began = begin_method(c, 1, PUBLISH);
    put_number(c, 0, 2);
    put_short(c, own.exchange);
    put_number(c, c->name_length, 1);
    put(c, c->name, c->name_length);
    put_number(c, own.mandatory, 1);
    end_frame(c, began);
    began = begin_frame(c, HEADER, 1);
    put_number(c, 60, 2);
    put_number(c, 0, 2);
    put_number(c, length, 8);
    /* content-type, headers, delivery-mode, message-id, app-id */
    put_number(c, 0x8000 | 0x2000 | 0x1000 | (own.unique ? 0x0080 : 0) | 0x0008, 2);
    put_short(c, "application/json");
    put(c, "\0\0\0\15\6schemaS\0\0\0\1" "3", 4 + 13);
    put_number(c, 2, 1);
    if (own.unique) {
        char id[40];
        snprintf(id, sizeof id, "%05d-%010lu", (int)(c - connections), c->tag);
        put_short(c, id);
    }
    put_short(c, "amqpload");
    end_frame(c, began);
    began = begin_frame(c, BODY, 1);
    put(c, payload, length);
    end_frame(c, began);
}

static void put_goodbye(struct connection *c) {
    size_t began = begin_method(c, 0, CONNECTION_CLOSE);
    put_number(c, 200, 2);
    put_short(c, "");
    put_number(c, 0, 4);
    end_frame(c, began);
}

/* Frames in. */

static void closed_by_server(struct connection *c, const uint8_t *arguments) {
    fprintf(stderr, "closed with %d %.*s\n", (int)number(arguments, 2), arguments[2], arguments + 3);
    lose(c, "closed with an exception");
}

static void on_delivery(struct connection *c, const uint8_t *arguments) {
    received++;
    last_received = arrived;
    if (measuring) measured_received++;
    uint64_t tag = number(arguments + 1 + arguments[0], 8);
    if (++c->unsettled < (uint32_t)(own.prefetch + 1) / 2) return;
    c->unsettled = 0;
    size_t began = begin_method(c, 1, ACK);
    put_number(c, tag, 8);
    put_number(c, 1, 1); /* multiple */
    end_frame(c, began);
}

/* Everything up to request `tag` is answered. */
static void answer_up_to(struct connection *c, uint64_t tag, bool taken) {
    for (uint64_t each = c->answered + 1; each <= tag && c->state != CLOSED; each++)
        if (c->since[each & since_mask]) answer(c, each, taken);
}

static void on_method(struct connection *c, const uint8_t *payload) {
    const uint8_t *arguments = payload + 4;
    uint32_t method = number(payload, 4);
    switch (method) {
    case ACK:
    case NACK: {
        uint64_t tag = number(arguments, 8);
        if (arguments[8] & 1) answer_up_to(c, tag, method == ACK);
        else answer(c, tag, method == ACK);
        break;
    }
    case DELIVER: on_delivery(c, arguments); break;
    case CONNECTION_START: put_start_ok(c); break;
    case TUNE: put_tuned_and_open(c, number(arguments + 2, 4)); break;
    case CONNECTION_OPEN_OK: put_channel_open(c); break;
    case CHANNEL_OPEN_OK:
        if (c->consumer) put_qos_and_consume(c);
        else put_confirm_select(c);
        break;
    case CONFIRM_SELECT_OK:
    case CONSUME_OK: become_ready(c); break;
    case RETURN: errors++; break;
    case CONNECTION_CLOSE:
    case CHANNEL_CLOSE: closed_by_server(c, arguments); break;
    }
}

static size_t take(struct connection *c, const uint8_t *bytes, size_t length) {
    size_t taken = 0;
    while (c->state != CLOSED && length - taken >= 8) {
        size_t size = number(bytes + taken + 3, 4);
        if (length - taken < size + 8) break;
        if (bytes[taken] == METHOD) on_method(c, bytes + taken + 7);
        taken += size + 8;
    }
    return taken;
}
