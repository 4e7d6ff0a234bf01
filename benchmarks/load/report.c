/* The report of protocolload: one JSON object, of the same members as stompload's.
 *
 * Owns nothing. Must never: print a figure without the checks beside it. */
#include <inttypes.h>
#include <stdio.h>

#include "load.h"

static void print_settings(const struct load *l)
{
    const struct options *o = &l->options;
    printf("\"settings\": {\"producers\": %u, \"consumers\": %u, \"queues\": %u, \"window\": %u, \"body_size\": %zu, ",
           l->producers, l->consumers, l->queues, l->window, l->body_size);
    print_text("producer_protocol", o->producer_protocol);
    print_text("consumer_protocol", o->consumer_protocol);
    printf("\"tls\": %s}, ", l->trust ? "true" : "false");
}

int report(const struct load *l)
{
    uint64_t unconfirmed, not_seen;
    count_ledger(l, &unconfirmed, &not_seen);
    uint64_t lost = l->consumers ? not_seen : 0;
    bool is_good = !(lost || unconfirmed || l->duplicates || l->misrouted || l->out_of_order || l->corrupt || l->receipt_errors);
    double seconds = (double)(l->end.time_ns - l->begin.time_ns) / 1e9, per_s = seconds > 0 ? 1 / seconds : 0;
    double confirmed = (double)(l->end.counts.confirmed - l->begin.counts.confirmed);
    double delivered = (double)(l->end.counts.delivered - l->begin.counts.delivered);
    double messages = l->consumers ? delivered : confirmed, each = messages > 0 ? 1e6 / messages : 0;
    double user = l->end.user_s - l->begin.user_s, system = l->end.system_s - l->begin.system_s;
    printf("{\"passed\": %s, ", is_good ? "true" : "false");
    print_text("ended", l->ended);
    print_text("reason", "");
    print_settings(l);
    printf("\"seconds\": %.3f, \"confirmed_per_s\": %.0f, \"delivered_per_s\": %.0f, ", seconds, confirmed * per_s,
           delivered * per_s);
    print_counts("window", l->begin.counts, l->end.counts);
    print_counts("totals", (struct counts){0}, l->counts);
    print_latency("confirm_latency_us", &l->confirm);
    print_latency("end_to_end_latency_us", &l->end_to_end);
    printf("\"checks\": {\"lost\": %" PRIu64 ", \"duplicates\": %" PRIu64 ", \"misrouted\": %" PRIu64 ", \"corrupt\": %" PRIu64
           ", \"receipt_errors\": %" PRIu64 ", \"unconfirmed\": %" PRIu64 ", \"resurrected\": 0, \"out_of_order\": %" PRIu64
           ", \"foreign\": 0, \"confirmed_not_seen\": %" PRIu64 ", \"in_doubt\": 0, \"order_checked\": true}, ",
           lost, l->duplicates, l->misrouted, l->corrupt, l->receipt_errors, unconfirmed, l->out_of_order,
           l->consumers ? 0 : not_seen);
    printf("\"generator\": {\"user_us_per_message\": %.3f, \"system_us_per_message\": %.3f, \"cores\": %.3f}, \"per_second\": [",
           user * each, system * each, (user + system) * per_s);
    for (uint32_t i = 0; i < SECONDS_MAX && (i == 0 || i + 0.01 < seconds); i++)
        printf("%s[%u, %u]", i ? ", " : "", l->series[i][0], l->series[i][1]);
    puts("]}");
    return is_good ? 0 : EXIT_CHECK;
}
