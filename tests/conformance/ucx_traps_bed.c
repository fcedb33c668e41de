/* Both processes of test_ucx_traps.c. The child runs a transport that listens,
 * sends the key of its region to whoever connects, answers questions, and ends
 * when the socket to its parent closes. */
#include "ucx_traps_bed.h"
#include "baton/transfer/runs.h"
#include "fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CONNS 8

struct hello {
    char what; /* 'k' */
    uint64_t address;
    uint16_t size;
    uint8_t key[1024];
};
struct answer {
    char what;
    uint64_t word;
};

uint64_t bed_word(uint64_t at)
{
    return (at + 1) * 0x9e3779b97f4a7c15u;
}

uint64_t bed_hash(const void *bytes, size_t size)
{
    return bt_block_checksum(bytes, size);
}

static unsigned char *region_new(void)
{
    unsigned char *region = mmap(NULL, BED_REGION, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(region, MAP_FAILED);
    return region;
}

static const char *address_of(void)
{
    const char *address = getenv("BATON_UCX_ADDRESS");

    return address != NULL ? address : "127.0.0.1";
}

/* ---- child ---- */

struct child;
struct peer {
    struct child *child;
    struct bt_tconn *conn;
    ev_timer later;
};
struct child {
    struct ev_loop *loop;
    struct bt_transport *transport;
    const struct bt_transport_ops *ops;
    struct bt_tmem *mem;
    unsigned char *region;
    bool allows;
    struct peer peers[CONNS];
    ev_io control;
};

static void tell(struct peer *peer, char what)
{
    struct answer answer = {.what = what, .word = (uint64_t)bt_fabric_now()};

    if (what == 'h')
        answer.word = bed_hash(peer->child->region, BED_REGION);
    if (peer->conn != NULL)
        peer->child->ops->send(peer->conn, &answer, sizeof(answer));
}

static void on_later(struct ev_loop *loop, ev_timer *w, int revents)
{
    (void)loop;
    (void)revents;
    tell(w->data, 'd');
}

static void child_frame(void *arg, const void *bytes, size_t size)
{
    struct peer *peer = arg;
    char what;

    if (size != 1)
        return;
    memcpy(&what, bytes, 1);
    if (what == 'd') {
        ev_now_update(peer->child->loop);
        ev_timer_init(&peer->later, on_later, 1, 0);
        peer->later.data = peer;
        ev_timer_start(peer->child->loop, &peer->later);
    } else {
        tell(peer, what);
    }
}

static void child_failed(void *arg, enum bt_status status)
{
    struct peer *peer = arg;

    (void)status;
    peer->child->ops->close(peer->conn);
}

static void child_closed(void *arg)
{
    struct peer *peer = arg;

    ev_timer_stop(peer->child->loop, &peer->later);
    peer->conn = NULL;
}

static const struct bt_tconn_events child_events = {
    .frame = child_frame, .failed = child_failed, .closed = child_closed};

static void child_accept(void *arg, struct bt_tconn *conn)
{
    struct child *c = arg;
    struct hello hello = {.what = 'k', .address = (uintptr_t)c->region};

    for (int i = 0; i < CONNS; i++) {
        struct peer *peer = &c->peers[i];

        if (peer->conn != NULL)
            continue;
        *peer = (struct peer){.child = c, .conn = conn};
        conn->events = &child_events;
        conn->arg = peer;
        if (c->allows)
            c->ops->allow(conn);
        if (c->ops->key_pack(c->transport, c->mem, hello.key, sizeof(hello.key),
                             &hello.size) == BT_OK)
            c->ops->send(conn, &hello, sizeof(hello));
        return;
    }
}

static void on_control(struct ev_loop *loop, ev_io *w, int revents)
{
    char byte;

    (void)revents;
    if (read(w->fd, &byte, 1) <= 0)
        ev_break(loop, EVBREAK_ALL);
}

/* argv: program --child TRANSPORTS MODE FD PORT */
int bed_child_main(int argc, char **argv)
{
    struct bt_rail_config rail = {.address = address_of()};
    struct child c = {.loop = ev_loop_new(EVFLAG_AUTO)};
    struct sockaddr_storage address;
    struct bt_tlisten *listener;
    socklen_t size;
    char error[160];
    uint16_t port;
    int fd;

    if (argc != 6)
        return 2;
    rail.transports = argv[2];
    c.allows = argv[3][0] == 'a';
    fd = (int)strtol(argv[4], NULL, 10);
    c.region = region_new();
    for (uint64_t i = 0; i < BED_REGION / 8; i++) {
        uint64_t word = bed_word(i);

        memcpy(c.region + i * 8, &word, 8);
    }
    if (bt_transport_ucx_open(c.loop, &rail, &c.transport, error,
                              sizeof(error)) != BT_OK)
        return 3;
    c.ops = c.transport->ops;
    if (c.ops->map(c.transport, c.region, BED_REGION, &c.mem) != BT_OK ||
        bt_fabric_address(rail.address, (uint16_t)strtoul(argv[5], NULL, 10),
                          &address, &size) != BT_OK ||
        c.ops->listen(c.transport, (struct sockaddr *)&address, size,
                      child_accept, &c, &port, &listener) != BT_OK ||
        write(fd, &port, sizeof(port)) != sizeof(port))
        return 4;
    ev_io_init(&c.control, on_control, fd, EV_READ);
    ev_io_start(c.loop, &c.control);
    ev_run(c.loop, 0);
    ev_io_stop(c.loop, &c.control);
    c.ops->unlisten(listener);
    c.ops->unmap(c.transport, c.mem);
    c.ops->destroy(c.transport);
    ev_loop_destroy(c.loop);
    munmap(c.region, BED_REGION);
    return 0;
}

/* ---- a peer that dies between two calls of UCX ---- */

static pid_t prey;           /* dies at our next connect; 0: nobody */
static uint16_t prey_spared; /* but not at one to this port */
static bool prey_taken;

static bool is_data_port(const struct sockaddr *to)
{
    struct sockaddr_in v4;

    if (to->sa_family != AF_INET)
        return false;
    memcpy(&v4, to, sizeof(v4));
    return ntohs(v4.sin_port) != prey_spared;
}

/* In place of the C library's, also for UCX. The prey is stopped, so that its
 * kernel takes the connection and nobody accepts it; killed, so that it is
 * reset before UCX has sent its first byte. */
int hooked_connect(int fd, const struct sockaddr *to,
                   socklen_t size) __asm__("connect")
    __attribute__((visibility("default"), used));

int hooked_connect(int fd, const struct sockaddr *to, socklen_t size)
{
    pid_t pid = prey;
    int status, result, error;

    if (pid == 0 || !is_data_port(to))
        return (int)syscall(SYS_connect, fd, to, size);
    prey = 0;
    prey_taken = true;
    (void)kill(pid, SIGSTOP);
    (void)waitpid(pid, &status, WUNTRACED);
    result = (int)syscall(SYS_connect, fd, to, size);
    error = errno;
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, &status, 0);
    errno = error;
    return result;
}

/* ---- parent ---- */

static void spawn_child(struct bed *bed, char mode, const char *log)
{
    char fd[16], kind[2] = {mode, '\0'}, port[16];
    char *argv[] = {(char[]){"bed"},
                    (char[]){"--child"},
                    (char *)(uintptr_t)bed->transports,
                    kind,
                    fd,
                    port,
                    NULL};
    posix_spawn_file_actions_t actions;
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair),
                     0);
    /* dup2 onto another number clears close-on-exec. */
    snprintf(fd, sizeof(fd), "%d", 100);
    snprintf(port, sizeof(port), "%u", bed->port);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], 100);
    if (log != NULL)
        posix_spawn_file_actions_addopen(&actions, 1, log,
                                         O_WRONLY | O_CREAT | O_APPEND, 0600);
    assert_int_equal(posix_spawn(&bed->child, "/proc/self/exe", &actions, NULL,
                                 argv, environ),
                     0);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    bed->control = pair[0];
    assert_int_equal(read(bed->control, &bed->port, sizeof(bed->port)),
                     sizeof(bed->port));
}

void bed_open(struct bed *bed, const char *transports, char mode,
              const char *log)
{
    struct bt_rail_config rail = {.transports = transports};
    uint16_t port = bed->port;
    char error[160] = "";

    *bed = (struct bed){.transports = transports,
                        .address = address_of(),
                        .port = port,
                        .loop = ev_loop_new(EVFLAG_AUTO)};
    spawn_child(bed, mode, log);
    if (bt_transport_ucx_open(bed->loop, &rail, &bed->transport, error,
                              sizeof(error)) != BT_OK)
        fail_msg("%s: %s", transports, error);
    bed->ops = bed->transport->ops;
    bed->region = region_new();
    assert_int_equal(
        bed->ops->map(bed->transport, bed->region, BED_REGION, &bed->mem),
        BT_OK);
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct bed *bed = arg;
    struct hello hello;
    struct answer answer;

    if (size == sizeof(hello)) {
        memcpy(&hello, bytes, sizeof(hello));
        bed->remote = hello.address;
        bed->packed_size = hello.size;
        memcpy(bed->packed, hello.key, sizeof(bed->packed));
        return;
    }
    assert_int_equal(size, sizeof(answer));
    memcpy(&answer, bytes, sizeof(answer));
    bed->word = answer.word;
    bed->answers++;
}

static void on_failed(void *arg, enum bt_status status)
{
    struct bed *bed = arg;

    bed->is_failed = true;
    bed->why = status;
}

static void on_closed(void *arg)
{
    struct bed *bed = arg;

    bed->is_closed = true;
    bed->conn = NULL;
}

static const struct bt_tconn_events events = {
    .frame = on_frame, .failed = on_failed, .closed = on_closed};

static void on_limit(struct ev_loop *loop, ev_timer *w, int revents)
{
    struct bed *bed = w->data;

    (void)loop;
    (void)revents;
    bed->is_late = true;
}

typedef bool (*until_fn)(const struct bed *bed, const void *arg);

static bool wait_until(struct bed *bed, until_fn until, const void *arg,
                       double limit_s)
{
    ev_timer limit;

    bed->is_late = false;
    ev_now_update(bed->loop);
    ev_timer_init(&limit, on_limit, limit_s, 0);
    limit.data = bed;
    ev_timer_start(bed->loop, &limit);
    while (!until(bed, arg) && !bed->is_late) {
        ev_run(bed->loop, EVRUN_ONCE);
        bed->turns++;
    }
    ev_timer_stop(bed->loop, &limit);
    return until(bed, arg);
}

static bool is_set(const struct bed *bed, const void *arg)
{
    (void)bed;
    return *(const bool *)arg;
}

bool bed_wait(struct bed *bed, const bool *flag, double limit_s)
{
    return wait_until(bed, is_set, flag, limit_s);
}

static bool ops_done(const struct bed *bed, const void *arg)
{
    for (uint32_t i = 0; i < *(const uint32_t *)arg; i++) {
        if (!bed->op[i].is_done)
            return false;
    }
    return true;
}

bool bed_wait_ops(struct bed *bed, uint32_t n, double limit_s)
{
    return wait_until(bed, ops_done, &n, limit_s);
}

static bool has_key(const struct bed *bed, const void *arg)
{
    (void)arg;
    return bed->packed_size > 0 || bed->is_failed;
}

static void connect_begin(struct bed *bed)
{
    struct sockaddr_storage address;
    socklen_t size;

    bed->is_failed = bed->is_closed = false;
    bed->packed_size = 0;
    assert_int_equal(
        bt_fabric_address(bed->address, bed->port, &address, &size), BT_OK);
    assert_int_equal(bed->ops->connect(bed->transport,
                                       (struct sockaddr *)&address, size,
                                       &bed->conn),
                     BT_OK);
    bed->conn->events = &events;
    bed->conn->arg = bed;
    assert_true(wait_until(bed, has_key, NULL, 10));
}

bool bed_connect_killing(struct bed *bed)
{
    prey = bed->child;
    prey_spared = bed->port;
    prey_taken = false;
    connect_begin(bed);
    prey = 0;
    if (prey_taken)
        bed->child = 0;
    return prey_taken;
}

void bed_connect(struct bed *bed)
{
    connect_begin(bed);
    assert_false(bed->is_failed);
    assert_int_equal(
        bed->ops->key_open(bed->conn, bed->packed, bed->packed_size, &bed->key),
        BT_OK);
}

void bed_disconnect(struct bed *bed)
{
    if (bed->conn != NULL) {
        bed->ops->close(bed->conn);
        assert_true(bed_wait(bed, &bed->is_closed, 3));
    }
    if (bed->key != NULL)
        bed->ops->key_close(bed->key);
    bed->key = NULL;
}

void bed_close(struct bed *bed)
{
    int status;

    bed_disconnect(bed);
    bed->ops->unmap(bed->transport, bed->mem);
    bed->ops->destroy(bed->transport);
    ev_loop_destroy(bed->loop);
    munmap(bed->region, BED_REGION);
    close(bed->control);
    if (bed->child > 0) {
        assert_int_equal(waitpid(bed->child, &status, 0), bed->child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void on_done(struct bt_tget *get, enum bt_status status)
{
    struct bed_op *op =
        (struct bed_op *)((char *)get - offsetof(struct bed_op, get));

    assert_false(op->is_done);
    op->is_done = true;
    op->status = status;
}

static void begin(struct bed *bed, uint32_t i, const struct bt_tpiece *pieces,
                  uint32_t count, bool put)
{
    struct bt_tspan span = {.pieces = pieces,
                            .count = count,
                            .local_mem = bed->mem,
                            .remote_key = bed->key};

    for (uint32_t k = 0; k < count; k++)
        span.bytes += pieces[k].bytes;
    bed->op[i] = (struct bed_op){.bed = bed};
    bed->op[i].get.done = on_done;
    (put ? bed->ops->put : bed->ops->get)(bed->conn, &span, &bed->op[i].get);
}

void bed_get(struct bed *bed, uint32_t i, const struct bt_tpiece *pieces,
             uint32_t count)
{
    begin(bed, i, pieces, count, false);
}

void bed_put(struct bed *bed, uint32_t i, const struct bt_tpiece *pieces,
             uint32_t count)
{
    begin(bed, i, pieces, count, true);
}

void bed_ask(struct bed *bed, char what)
{
    bed->ops->send(bed->conn, &what, 1);
}

static bool answered(const struct bed *bed, const void *arg)
{
    return bed->answers != *(const uint32_t *)arg;
}

bool bed_answer(struct bed *bed, double limit_s)
{
    uint32_t before = bed->answers;

    return wait_until(bed, answered, &before, limit_s);
}

void bed_signal(struct bed *bed, int signal)
{
    int status;

    assert_int_equal(kill(bed->child, signal), 0);
    if (signal == SIGSTOP)
        waitpid(bed->child, &status, WUNTRACED);
    if (signal == SIGKILL) {
        waitpid(bed->child, &status, 0);
        bed->child = 0;
    }
}

bool bed_child_lives(const struct bed *bed)
{
    return waitpid(bed->child, NULL, WNOHANG) == 0;
}
