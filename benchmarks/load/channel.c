#include "channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "measuring.h"

#if __has_include(<openssl/ssl.h>)
#include <openssl/err.h>
#include <openssl/ssl.h>

static void die_of_tls(int code, const char *what) __attribute__((noreturn));
static void die_of_tls(int code, const char *what)
{
    char text[256] = "the connection was closed";
    unsigned long error = ERR_get_error();
    if (error)
        ERR_error_string_n(error, text, sizeof text);
    die(code, "%s: %s", what, text);
}

void *channel_trust(const char *authority_file)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context || SSL_CTX_load_verify_locations(context, authority_file, NULL) != 1)
        die_of_tls(EXIT_USAGE, "--tls-ca: no certificate of an authority could be read");
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return context;
}

static void shake_hands(struct channel *c, void *trust)
{
    SSL *session = SSL_new(trust);
    if (!session || SSL_set_fd(session, c->fd) != 1 || SSL_connect(session) != 1)
        die_of_tls(EXIT_LOST, "no TLS with the broker");
    c->session = session;
}

static ssize_t outcome(struct channel *c, int done)
{
    if (done > 0)
        return done;
    int error = SSL_get_error(c->session, done);
    ERR_clear_error();
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

static ssize_t tls_read(struct channel *c, void *to, size_t room)
{
    size_t had = 0;
    ssize_t more = 0;
    while (had < room && (more = outcome(c, SSL_read(c->session, (char *)to + had, (int)(room - had)))) > 0)
        had += (size_t)more;
    return had > 0 ? (ssize_t)had : more; /* a record a call; the end, if it is one, is told by the next read */
}

static ssize_t tls_write(struct channel *c, const void *from, size_t size)
{
    return outcome(c, SSL_write(c->session, from, (int)size));
}

static void end_session(struct channel *c)
{
    (void)SSL_shutdown(c->session);
    SSL_free(c->session);
}

bool channel_has_more(const struct channel *c) { return c->session && SSL_has_pending(c->session); }
#else
void *channel_trust(const char *authority_file)
{
    die(EXIT_USAGE, "--tls-ca %s: built without TLS, as there was no openssl/ssl.h; on Debian: apt-get install libssl-dev, "
        "then remove this program, which is built again when it is needed", authority_file);
}
static void shake_hands(struct channel *c, void *trust) { (void)c, (void)trust; }
static ssize_t tls_read(struct channel *c, void *to, size_t room) { return (void)c, (void)to, (void)room, -1; }
static ssize_t tls_write(struct channel *c, const void *from, size_t size) { return (void)c, (void)from, (void)size, -1; }
static void end_session(struct channel *c) { (void)c; }
bool channel_has_more(const struct channel *c) { return (void)c, false; }
#endif

void channel_open(struct channel *c, uint16_t port, void *trust)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1;
    *c = (struct channel){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address))
        die(EXIT_LOST, "connect to 127.0.0.1 port %u: %s", port, strerror(errno));
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (trust)
        shake_hands(c, trust);
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK))
        die(EXIT_LOST, "fcntl: %s", strerror(errno));
}

void channel_close(struct channel *c)
{
    if (c->session)
        end_session(c);
    (void)close(c->fd);
    *c = (struct channel){.fd = -1};
}

static ssize_t plain_outcome(ssize_t done, bool is_end)
{
    if (done > 0)
        return done;
    return done < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : is_end || done < 0 ? -1 : 0;
}

ssize_t channel_read(struct channel *c, void *to, size_t room)
{
    return c->session ? tls_read(c, to, room) : plain_outcome(recv(c->fd, to, room, 0), true);
}

ssize_t channel_write(struct channel *c, const void *from, size_t size)
{
    return c->session ? tls_write(c, from, size) : plain_outcome(send(c->fd, from, size, MSG_NOSIGNAL), false);
}
