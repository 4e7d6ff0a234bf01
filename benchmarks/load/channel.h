/* A connection to a broker on 127.0.0.1, plain or TLS, whose reads and writes do not wait.
 *
 * Owns: its socket and its TLS session. Must never: talk to another machine, or take a certificate of an authority that
 * was not named. Called by protocolload. */
#ifndef LOAD_CHANNEL_H
#define LOAD_CHANNEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct channel { int fd; void *session; };

/* Return what `channel_open` needs for TLS: the one authority, of a PEM file, that servers have to be signed by. */
void *channel_trust(const char *authority_file);

/* Connect, and shake hands unless `trust` is NULL; this does wait. */
void channel_open(struct channel *c, uint16_t port, void *trust);
void channel_close(struct channel *c);

/* Bytes that were read; 0 when there are none now, -1 when the broker has closed. */
ssize_t channel_read(struct channel *c, void *to, size_t room);

/* Bytes that were written; 0 when the socket takes none now, -1 when the connection is gone. */
ssize_t channel_write(struct channel *c, const void *from, size_t size);

/* Whether there are bytes that have left the socket and were not read: epoll does not tell of them. */
bool channel_has_more(const struct channel *c);
#endif
