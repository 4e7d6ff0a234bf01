/* protocolload: a load generator for STOMP, MQTT and AMQP 1.0, and from each into each other, that checks what it measures;
 * beside stompload, and with its report.
 *
 * Owns: the options, and which client sends and receives where. Connections, ledger, run and report are load/, as is each
 * protocol. One thread, one epoll; closed loop: each producer has `window` messages out.
 * Must never: run without an end, or print a figure without the loss, duplicate and order check beside it.
 * Called by: `python -m benchmarks.protocols`, and by hand; docs/howto/benchmarks.md.
 *
 * Producer p sends to address p % queues; consumer c receives from address c, so order can be checked. Every message is
 * journalled before it is confirmed: it goes to a queue or, where MQTT is a consumer or the only protocol, to persistent
 * sessions, without consumers to those of keepers, which have subscribed and gone.
 * Exit: 0 good, 1 a check failed or the broker refused, 2 usage, 3 connection refused or lost. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "load/load.h"

const char PROGRAM[] = "protocolload";

enum { CLIENTS_MAX = 4096, WINDOW_MAX = 32767 };

static const struct protocol *const PROTOCOLS[] = {&STOMP, &MQTT_3, &MQTT_5, &AMQP};

static const struct protocol *protocol_of(const char *option, const char *name)
{
    for (size_t i = 0; i < sizeof PROTOCOLS / sizeof *PROTOCOLS; i++)
        if (!strcmp(PROTOCOLS[i]->name, name))
            return PROTOCOLS[i];
    die(EXIT_USAGE, "%s %s: stomp, mqtt, mqtt5 or amqp", option, name);
}

static void name_address(const struct load *l, struct client *c)
{
    const char *prefix = c->protocol->has_topics ? "" : c->role == PRODUCES && l->consumers && l->consumer_protocol->has_topics
                                                      ? "/topic/" : "/queue/";
    (void)snprintf(c->address, sizeof c->address, "%sbench%c%u", prefix, c->protocol->has_topics ? '/' : '.', c->queue);
}

static void check_options(const struct load *l)
{
    const struct options *o = &l->options;
    size_t most = l->producer_protocol->body_max < l->consumer_protocol->body_max ? l->producer_protocol->body_max
                                                                                  : l->consumer_protocol->body_max;
    if (o->port < 1 || o->port > 65535 || o->producers < 1 || o->producers > CLIENTS_MAX || o->queues < 1 ||
        o->queues > CLIENTS_MAX)
        die(EXIT_USAGE, "--port from 1 to 65535; --producers and --queues from 1 to %d", CLIENTS_MAX);
    if (o->consumers > CLIENTS_MAX || (o->consumers >= 1 && (uint32_t)o->consumers != (uint32_t)o->queues))
        die(EXIT_USAGE, "--consumers %.0f: 0, or as many as queues (%.0f)", o->consumers, o->queues);
    if (o->window < 1 || o->window > WINDOW_MAX)
        die(EXIT_USAGE, "--window %.0f: from 1 to %d", o->window, WINDOW_MAX);
    if (o->messages < 1 || o->messages > 1e9 || o->seconds > 86400 || o->warmup > 3600 || o->drain_seconds > 3600)
        die(EXIT_USAGE, "--messages from 1 to 1e9, --seconds to 86400, --warmup and --drain-seconds to 3600");
    if (o->body_size < sizeof(struct stamp) || o->body_size > (double)most)
        die(EXIT_USAGE, "--body-size %.0f: from %zu to %zu bytes", o->body_size, sizeof(struct stamp), most);
}

/* Everything that follows from the options, before the first socket. */
static void prepare(struct load *l)
{
    const struct options *o = &l->options;
    l->producer_protocol = protocol_of("--producer-protocol", o->producer_protocol);
    l->consumer_protocol = protocol_of("--consumer-protocol", o->consumer_protocol);
    check_options(l);
    l->producers = (uint32_t)o->producers, l->consumers = (uint32_t)o->consumers, l->queues = (uint32_t)o->queues;
    l->keepers = !l->consumers && l->producer_protocol->has_topics ? l->queues : 0;
    l->client_count = l->producers + l->consumers + l->keepers;
    l->window = (uint32_t)o->window, l->body_size = (size_t)o->body_size, l->quota = (uint64_t)o->messages;
    for (l->ring_mask = 1023; l->ring_mask < 4 * (uint64_t)l->window; l->ring_mask = l->ring_mask * 2 + 1) {}
    l->ended = "";
    l->trust = o->tls_ca ? channel_trust(o->tls_ca) : NULL;
    l->filler = allocate(l->body_size, 1);
    for (size_t i = 0; i < l->body_size; i++)
        l->filler[i] = (char)('a' + i % 26);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->clients = allocate(l->client_count, sizeof *l->clients);
    for (uint32_t i = 0; i < l->client_count; i++) {
        struct client *c = &l->clients[i];
        c->role = i < l->producers ? PRODUCES : i < l->producers + l->consumers ? CONSUMES : KEEPS;
        c->index = c->role == PRODUCES ? i : c->role == CONSUMES ? i - l->producers : i - l->producers - l->consumers;
        c->queue = c->index % l->queues;
        c->protocol = c->role == CONSUMES ? l->consumer_protocol : l->producer_protocol;
        if (c->role == PRODUCES)
            c->made_ns = allocate(l->ring_mask + 1, sizeof *c->made_ns);
        name_address(l, c);
    }
}

static void read_options(struct options *o, int argc, char **argv)
{
    struct { const char *name; double *number; const char **text; } known[] = {
        {"--port", &o->port, 0}, {"--producers", &o->producers, 0}, {"--consumers", &o->consumers, 0},
        {"--queues", &o->queues, 0}, {"--window", &o->window, 0}, {"--body-size", &o->body_size, 0},
        {"--warmup", &o->warmup, 0}, {"--seconds", &o->seconds, 0}, {"--messages", &o->messages, 0},
        {"--drain-seconds", &o->drain_seconds, 0}, {"--producer-protocol", 0, &o->producer_protocol},
        {"--consumer-protocol", 0, &o->consumer_protocol}, {"--tls-ca", 0, &o->tls_ca}};
    for (int i = 1; i < argc; i += 2) {
        bool is_known = false;
        for (size_t k = 0; k < sizeof known / sizeof *known && i + 1 < argc; k++) {
            if (strcmp(argv[i], known[k].name) != 0)
                continue;
            char *end = argv[i + 1];
            if (known[k].number)
                *known[k].number = strtod(argv[i + 1], &end);
            else
                *known[k].text = argv[i + 1];
            is_known = !known[k].number || (!*end && *argv[i + 1] && *known[k].number >= 0);
        }
        if (!is_known) {
            fprintf(stderr, "%s: what is %s? Options, each with a number, a protocol (stomp, mqtt, mqtt5, amqp) or a file:",
                    PROGRAM, argv[i]);
            for (size_t k = 0; k < sizeof known / sizeof *known; k++)
                fprintf(stderr, " %s", known[k].name);
            fputc('\n', stderr);
            exit(EXIT_USAGE);
        }
    }
}

int main(int argc, char **argv)
{
    struct load *l = allocate(1, sizeof *l);
    l->options = (struct options){.port = 61616, .producers = 1, .queues = 1, .window = 1, .body_size = 1024, .warmup = 1,
                                  .seconds = 4, .messages = 2e7, .drain_seconds = 10, .producer_protocol = "stomp"};
    read_options(&l->options, argc, argv);
    if (!l->options.consumer_protocol)
        l->options.consumer_protocol = l->options.producer_protocol;
    prepare(l);
    connect_all(l);
    run(l);
    return report(l);
}
