/* The door of a source: a listener per rail, who comes in, who is let in.
 *
 *   accepted --HELLO--> [key: CHALLENGE --PROVE-->] admitted --> greeted
 *      any doubt: NO with the reason, `refused`; silence, a broken frame: close
 *
 * Decides who may read: memory is allowed to a caller only once it has proved
 * the key (if there is one), named a region that is here and a layout that
 * agrees. What it asks for afterwards is kv_job.c's. Invariants: callers of one
 * session and region are one guest; the guest ends with its last caller. */
#include "descriptors.h"
#include "kv_source.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STOP_NS 1000000000LL
/* A caller takes two or three: SPARE is for those that come within one beat.
 * With fewer nobody is let in, with SPARE_AGAIN the doors are opened again. */
#define SPARE         32u
#define SPARE_AGAIN   48u
#define REFUSED_BEATS 5u /* a refused caller leaves by itself, or is closed */

void bt_caller_close(struct caller *caller)
{
    if (caller->state == CALLER_CLOSING)
        return;
    caller->state = CALLER_CLOSING;
    if (caller->guest != NULL)
        bt_job_orphans(caller);
    caller->link.transport->ops->close(caller->link.conn);
}

/* ---- refusals ---- */

static const struct bt_kv_source_config *config_of(const struct caller *caller)
{
    const struct bt_kv_source *source = caller->source;

    if (source == NULL)
        source = LIST_FIRST(&caller->door->sources);
    return source != NULL ? &source->config : NULL;
}

static void report(const struct caller *caller, const char *reason)
{
    const struct bt_kv_source_config *c = config_of(caller);

    if (c != NULL && c->refused != NULL)
        c->refused(c->arg, caller->name, reason);
}

static void refuse(struct caller *caller, enum bt_status status,
                   const char *reason)
{
    struct bt_wire_frame f = {.type = BT_WIRE_NO, .status = (uint32_t)status};
    struct bt_fabric *fabric = caller->door->fabric;

    if (status == BT_REFUSED)
        fabric->stats.refused_key++;
    else
        fabric->stats.refused_layout++;
    snprintf(f.text, sizeof(f.text), "%s", reason);
    bt_link_send(&caller->link, &f);
    caller->state = CALLER_REFUSED;
    report(caller, reason);
}

/* ---- greeting ---- */

static struct bt_kv_source *source_named(struct bt_door *door,
                                         const char *region)
{
    struct bt_kv_source *source;

    LIST_FOREACH(source, &door->sources, entry)
    {
        if (strcmp(source->region_name, region) == 0)
            return source;
    }
    return NULL;
}

static struct guest *guest_get(struct bt_kv_source *source,
                               const struct bt_wire_frame *hello)
{
    struct guest *guest;

    LIST_FOREACH(guest, &source->guests, entry)
    {
        if (guest->session == hello->session &&
            strcmp(guest->name, hello->name) == 0)
            return guest;
    }
    if (source->guest_count == BT_SOURCE_GUESTS_MAX)
        return NULL;
    guest = calloc(1, sizeof(*guest));
    if (guest == NULL)
        return NULL;
    guest->source = source;
    guest->session = hello->session;
    memcpy(guest->name, hello->name, sizeof(guest->name));
    LIST_INIT(&guest->callers);
    TAILQ_INIT(&guest->jobs);
    LIST_INSERT_HEAD(&source->guests, guest, entry);
    source->guest_count++;
    return guest;
}

static void send_welcome(struct caller *caller)
{
    struct bt_kv_source *source = caller->source;
    struct bt_fabric *fabric = source->fabric;
    struct bt_wire_frame w = {.type = BT_WIRE_WELCOME,
                              .layout = source->config.layout,
                              .session = fabric->instance};

    memcpy(w.name, source->name, sizeof(w.name));
    w.region = (uintptr_t)source->config.region;
    w.block_count = source->config.block_count;
    w.key_size = source->key_sizes[caller->rail];
    memcpy(w.key, source->keys[caller->rail], w.key_size);
    w.rail_count = (uint8_t)(fabric->rail_count - 1);
    for (uint32_t i = 1; i < fabric->rail_count; i++) {
        const struct bt_door_rail *rail = &caller->door->rails[i];
        struct bt_wire_rail *out = &w.rails[i - 1];

        memcpy(out->address, rail->address, sizeof(out->address));
        out->port = rail->port;
    }
    bt_link_send(&caller->link, &w);
}

/* The key is proved, or there is none. */
static void admit(struct caller *caller)
{
    const struct bt_wire_frame *hello = caller->hello;
    char text[BT_WIRE_TEXT_MAX];

    caller->source = source_named(caller->door, hello->region_name);
    if (caller->source == NULL) {
        snprintf(text, sizeof(text), "no region \"%s\" here",
                 hello->region_name);
        refuse(caller, BT_NOT_FOUND, text);
        return;
    }
    if (bt_wire_layout_match(&caller->source->config.layout, &hello->layout,
                             text, sizeof(text)) != BT_OK) {
        refuse(caller, BT_INCOMPATIBLE, text);
        return;
    }
    caller->guest = guest_get(caller->source, hello);
    if (caller->guest == NULL) {
        bt_caller_close(caller);
        return;
    }
    LIST_INSERT_HEAD(&caller->guest->callers, caller, guest_entry);
    caller->state = CALLER_GREETED;
    free(caller->hello);
    caller->hello = NULL;
    caller->link.transport->ops->allow(caller->link.conn);
    send_welcome(caller);
}

static void challenge(struct caller *caller, const struct bt_wire_frame *f)
{
    struct bt_wire_frame c = {.type = BT_WIRE_CHALLENGE};

    bt_fabric_random(caller->link.nonce, sizeof(caller->link.nonce));
    bt_link_keyed(&caller->link, f, caller->link.nonce, false);
    memcpy(c.nonce, caller->link.nonce, sizeof(c.nonce));
    bt_seal_proof(&caller->link.seal, c.proof);
    caller->state = CALLER_CHALLENGED;
    bt_link_send(&caller->link, &c);
}

static void on_hello(struct caller *caller, const struct bt_wire_frame *f)
{
    bool has_key = caller->door->fabric->has_key;

    memcpy(caller->name, f->name, sizeof(caller->name));
    if (has_key != (bool)(f->flags & BT_WIRE_KEYED)) {
        refuse(caller, BT_REFUSED,
               has_key ? "the source wants a key, the sink has none"
                       : "the sink wants a key, the source has none");
        return;
    }
    caller->hello = malloc(sizeof(*f));
    if (caller->hello == NULL) {
        bt_caller_close(caller);
        return;
    }
    *caller->hello = *f;
    if (has_key)
        challenge(caller, f);
    else
        admit(caller);
}

static void on_prove(struct caller *caller, const struct bt_wire_frame *f)
{
    if (!bt_seal_proves(&caller->link.seal, f->proof)) {
        refuse(caller, BT_REFUSED, "wrong key");
        return;
    }
    caller->link.sealed = true;
    admit(caller);
}

/* ---- frames ---- */

static void dispatch(struct caller *caller, const struct bt_wire_frame *f)
{
    const struct bt_kv_source_config *c = &caller->source->config;
    struct bt_wire_frame pong = {.type = BT_WIRE_PONG, .token = f->token};

    switch (f->type) {
    case BT_WIRE_OPEN:
        bt_job_open(caller, f);
        break;
    case BT_WIRE_DONE:
        bt_job_done(caller, f);
        break;
    case BT_WIRE_BEAT:
        if (c->renewed != NULL)
            c->renewed(c->arg, f->request);
        break;
    case BT_WIRE_PING:
        bt_link_send(&caller->link, &pong);
        break;
    case BT_WIRE_PONG:
        break;
    case BT_WIRE_HELLO:
    case BT_WIRE_CHALLENGE:
    case BT_WIRE_PROVE:
    case BT_WIRE_WELCOME:
    case BT_WIRE_GRANT:
    case BT_WIRE_NO:
        bt_caller_close(caller);
        break;
    }
}

/* The sink could not verify our proof: it has another key. */
static void denied(struct caller *caller)
{
    caller->door->fabric->stats.refused_key++;
    report(caller, "wrong key");
    bt_caller_close(caller);
}

static void greeting(struct caller *caller, const struct bt_wire_frame *f)
{
    if (caller->state == CALLER_NEW && f->type == BT_WIRE_HELLO)
        on_hello(caller, f);
    else if (caller->state == CALLER_CHALLENGED && f->type == BT_WIRE_PROVE)
        on_prove(caller, f);
    else if (caller->state == CALLER_CHALLENGED && f->type == BT_WIRE_NO)
        denied(caller);
    else
        bt_caller_close(caller);
}

static void on_frame(void *arg, const void *bytes, size_t size)
{
    struct caller *caller = arg;
    struct bt_wire_frame f;
    const char *text = "";
    enum bt_status status;

    if (caller->state == CALLER_CLOSING)
        return;
    caller->heard = true;
    status = bt_link_open(&caller->link, bytes, size, &f, &text);
    if (status == BT_INCOMPATIBLE && caller->state == CALLER_NEW)
        refuse(caller, status, text);
    else if (status != BT_OK)
        bt_caller_close(caller);
    else if (caller->state == CALLER_GREETED)
        dispatch(caller, &f);
    else
        greeting(caller, &f);
}

static void on_failed(void *arg, enum bt_status status)
{
    (void)status;
    bt_caller_close(arg);
}

static void on_closed(void *arg)
{
    struct caller *caller = arg;
    struct guest *guest = caller->guest;

    if (guest != NULL) {
        LIST_REMOVE(caller, guest_entry);
        if (LIST_EMPTY(&guest->callers))
            bt_guest_free(guest);
    }
    caller->door->caller_count--;
    LIST_REMOVE(caller, entry);
    explicit_bzero(&caller->link.seal, sizeof(caller->link.seal));
    free(caller->hello);
    free(caller);
}

static bool is_stranger(const struct caller *caller)
{
    return caller->state == CALLER_NEW || caller->state == CALLER_CHALLENGED ||
           caller->state == CALLER_REFUSED;
}

/* Who connects and never greets cannot keep others out: the one that has been
 * here longest makes room, and each goes when it has been silent for long. */
static void limit_strangers(struct bt_door *door)
{
    struct caller *caller, *oldest = NULL;
    size_t count = 0;

    LIST_FOREACH(caller, &door->callers, entry)
    {
        if (!is_stranger(caller))
            continue;
        count++;
        oldest = caller; /* new ones are put at the head */
    }
    if (count > BT_DOOR_STRANGERS)
        bt_caller_close(oldest);
}

/* No events set: the transport closes the connection. */
static void on_accept(void *arg, struct bt_tconn *conn)
{
    static const struct bt_tconn_events events = {on_frame, on_failed,
                                                  on_closed};
    struct bt_door_rail *rail = arg;
    struct bt_door *door = rail->door;
    struct caller *caller;

    if (door->caller_count == BT_DOOR_CALLERS_MAX)
        return;
    caller = calloc(1, sizeof(*caller));
    if (caller == NULL)
        return;
    caller->door = door;
    caller->rail = rail->rail;
    caller->link.fabric = door->fabric;
    caller->link.transport = door->fabric->rails[rail->rail].transport;
    caller->link.conn = conn;
    LIST_INSERT_HEAD(&door->callers, caller, entry);
    door->caller_count++;
    conn->events = &events;
    conn->arg = caller;
    limit_strangers(door);
}

/* ---- heartbeat ---- */

static void door_heartbeat(struct bt_door *door)
{
    struct caller *caller;

    LIST_FOREACH(caller, &door->callers, entry)
    {
        unsigned int max = caller->state == CALLER_REFUSED
                               ? REFUSED_BEATS
                               : BT_FABRIC_SILENT_SINK;

        caller->missed =
            caller->heard ? 0 : caller->missed + door->fabric->beat_weight;
        caller->heard = false;
        if (caller->missed > max * BT_FABRIC_BEAT)
            bt_caller_close(caller);
    }
}

/* ---- life ---- */

static void shut(struct bt_door *door)
{
    for (uint32_t i = 0; i < door->fabric->rail_count; i++) {
        struct bt_transport *t = door->fabric->rails[i].transport;

        if (door->rails[i].listener != NULL)
            t->ops->unlisten(door->rails[i].listener);
        door->rails[i].listener = NULL;
    }
}

/* Why nothing could listen there, in an operator's words. */
static enum bt_status listen_fault(const struct sockaddr_storage *where,
                                   socklen_t size, enum bt_status status,
                                   const char **step_out)
{
    int error = status == BT_IO ? bt_fabric_bind_error(where, size) : 0;

    if (status == BT_EXISTS)
        *step_out = "the port is taken";
    if (error == EACCES)
        *step_out = "no permission for this port";
    if (error != EADDRNOTAVAIL)
        return status;
    *step_out = "not an address of this machine";
    return BT_INVALID;
}

static enum bt_status listen_rail(struct bt_door *door, uint32_t i,
                                  uint16_t port, const char **step_out)
{
    struct bt_fabric_rail *own = &door->fabric->rails[i];
    struct bt_door_rail *rail = &door->rails[i];
    const char *address = door->address;
    struct sockaddr_storage where;
    socklen_t size;
    enum bt_status status;

    if (i > 0 && own->address[0] != 0) {
        address = own->address;
        memcpy(rail->address, own->address, sizeof(rail->address));
    }
    status = bt_fabric_address(address, port, &where, &size);
    if (status != BT_OK)
        return status;
    rail->door = door;
    rail->rail = i;
    status = own->transport->ops->listen(
        own->transport, (struct sockaddr *)&where, size, on_accept, rail,
        &rail->port, &rail->listener);
    return status == BT_OK ? status
                           : listen_fault(&where, size, status, step_out);
}

/* ---- out of descriptors ---- */

static void tell(const struct bt_door *door, const char *text)
{
    const struct bt_kv_source *source = LIST_FIRST(&door->sources);

    if (source != NULL && source->config.refused != NULL)
        source->config.refused(source->config.arg, "", text);
}

/* On the ports it had; false: not all of them, yet. */
static bool open_again(struct bt_door *door)
{
    const char *step = "";
    bool whole = true;

    for (uint32_t i = 0; i < door->fabric->rail_count; i++) {
        if (door->rails[i].listener == NULL)
            whole &= listen_rail(door, i, door->rails[i].port, &step) == BT_OK;
    }
    return whole;
}

/* A listener whose accept fails for want of descriptors stays readable, and UCX
 * tries again at once: one peer more would cost a core until some are free
 * (field-failures E21), and hear nothing. So the doors are shut before, callers
 * hear at once that nobody listens, and those inside are served as ever. */
static void mind_descriptors(struct bt_fabric *fabric)
{
    bool few, was_shut = fabric->doors_are_shut;
    struct bt_door *door;

    if (LIST_EMPTY(&fabric->doors))
        return;
    few = !bt_descriptors_left(was_shut ? SPARE_AGAIN : SPARE);
    if (few == was_shut)
        return;
    fabric->doors_are_shut = few;
    fabric->stats.doors_shut += few;
    LIST_FOREACH(door, &fabric->doors, entry)
    {
        if (LIST_EMPTY(&door->sources)) /* it is being left */
            continue;
        if (few)
            shut(door);
        else if (!open_again(door))
            fabric->doors_are_shut = true;
    }
    LIST_FOREACH(door, &fabric->doors, entry)
    {
        if (fabric->doors_are_shut != was_shut)
            tell(door, few ? "file descriptors run out (ulimit -n): nobody new "
                             "is let in until some are free"
                           : "there are file descriptors again: the next are "
                             "let in");
    }
}

void bt_doors_heartbeat(struct bt_fabric *fabric)
{
    struct bt_door *door;

    LIST_FOREACH(door, &fabric->doors, entry)
    door_heartbeat(door);
    mind_descriptors(fabric);
}

static struct bt_door *door_find(struct bt_fabric *fabric, const char *address,
                                 uint16_t port)
{
    struct bt_door *door;

    LIST_FOREACH(door, &fabric->doors, entry)
    {
        if (port != 0 && door->rails[0].port == port &&
            strcmp(door->address, address) == 0)
            return door;
    }
    return NULL;
}

enum bt_status bt_door_get(struct bt_fabric *fabric, const char *address,
                           uint16_t port, struct bt_door **out,
                           const char **step_out)
{
    struct bt_door *door = door_find(fabric, address, port);
    struct sockaddr_storage where;
    socklen_t size;
    enum bt_status status;

    *out = door;
    if (door != NULL)
        return BT_OK;
    *step_out = "address is not numeric";
    if (strlen(address) >= BT_WIRE_ADDRESS ||
        bt_fabric_address(address, port, &where, &size) != BT_OK)
        return BT_INVALID;
    *step_out = "listen";
    door = calloc(1, sizeof(*door));
    if (door == NULL)
        return BT_NO_MEMORY;
    door->fabric = fabric;
    memcpy(door->address, address, strlen(address) + 1);
    LIST_INIT(&door->sources);
    LIST_INIT(&door->callers);
    for (uint32_t i = 0; i < fabric->rail_count; i++) {
        status = listen_rail(door, i, i == 0 ? port : 0, step_out);
        if (status != BT_OK) {
            shut(door);
            free(door);
            return status;
        }
    }
    LIST_INSERT_HEAD(&fabric->doors, door, entry);
    *out = door;
    return BT_OK;
}

static bool is_his(const struct caller *caller,
                   const struct bt_kv_source *source, bool is_last)
{
    return is_last || caller->source == source;
}

struct leaving {
    struct bt_kv_source *source;
    bool is_last;
};

static bool none_left(void *arg)
{
    const struct leaving *l = arg;
    struct caller *caller;

    LIST_FOREACH(caller, &l->source->door->callers, entry)
    {
        if (is_his(caller, l->source, l->is_last))
            return false;
    }
    return true;
}

void bt_door_leave(struct bt_kv_source *source)
{
    struct bt_door *door = source->door;
    struct leaving l = {source, false};
    struct caller *caller, *next;

    LIST_REMOVE(source, entry);
    l.is_last = LIST_EMPTY(&door->sources);
    if (l.is_last)
        shut(door);
    LIST_FOREACH(caller, &door->callers, entry)
    {
        if (is_his(caller, source, l.is_last))
            bt_caller_close(caller);
    }
    bt_fabric_settle(source->fabric, none_left, &l, STOP_NS);
    for (caller = LIST_FIRST(&door->callers); caller != NULL; caller = next) {
        next = LIST_NEXT(caller, entry);
        if (!is_his(caller, source, l.is_last))
            continue;
        caller->link.conn->events = NULL; /* the transport frees it, later */
        on_closed(caller);
    }
    if (!l.is_last)
        return;
    LIST_REMOVE(door, entry);
    free(door);
}
