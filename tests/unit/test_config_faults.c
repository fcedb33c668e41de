/* bt_config_load on bad files: each kind of fault with its exact line, column,
 * text and hint. Positions were counted by hand in the texts below. */
#include "baton/orchestrator/config.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODELS  "models:\n  - {name: demo}\n"
#define WORKERS "workers:\n  - {name: w0, url: 'http://127.0.0.1:1'}\n"
#define GOOD    MODELS WORKERS /* four lines */
#define WORKER(rest)                                                           \
    MODELS "workers:\n  - name: w0\n    url: 'http://127.0.0.1:1'\n    " rest  \
           "\n" /* rest stands at line 6, column 5 */
#define TWO(rest)                                                              \
    MODELS WORKERS "  - {name: w1, url: 'http://127.0.0.1:2'}\n" rest
#define LINK(rest) TWO("links:\n  - {" rest "}\n") /* line 7, column 6 */

struct sample {
    const char *yaml;
    enum bt_status status;
    const char *fault; /* after "FILE:" */
};

static const struct sample SAMPLES[] = {
    /* keys */
    {GOOD "polcy: joint\n", BT_INVALID,
     "5:1: unknown key 'polcy' (did you mean 'policy'?)"},
    {GOOD "limits:\n  quue: 3\n", BT_INVALID,
     "6:3: unknown key 'quue' (did you mean 'queue'?)"},
    {GOOD "limits: {queue: 3, hedaers: 1KiB}\n", BT_INVALID,
     "5:20: unknown key 'hedaers' (did you mean 'headers'?)"},
    {"models:\n  - {nmae: demo}\n", BT_INVALID,
     "2:6: unknown key 'nmae' (did you mean 'name'?)"},
    {WORKER("rol: both"), BT_INVALID,
     "6:5: unknown key 'rol' (did you mean 'role'?)"},
    {GOOD "xyzzy: 1\n", BT_INVALID, "5:1: unknown key 'xyzzy'"},
    {GOOD "limits.queue: 1\n", BT_INVALID,
     "5:1: unknown key 'limits.queue' (did you mean 'limits'?)"},
    {GOOD "<<: {a: 1}\n", BT_INVALID, "5:1: unknown key '<<'"},
    {GOOD "policy: joint\nseed: 2\npolicy: joint\n", BT_DUPLICATE,
     "7:1: repeated key 'policy'"},
    {GOOD "log: {level: info, level: warn}\n", BT_DUPLICATE,
     "5:20: repeated key 'level'"},
    {GOOD "models:\n  - {name: b}\n", BT_DUPLICATE,
     "5:1: repeated key 'models'"},
    {"models:\n  - {}\n", BT_INVALID, "2:5: missing key 'name'"},
    {MODELS "workers:\n  - {name: w0}\n", BT_INVALID, "4:5: missing key 'url'"},
    {GOOD "? [a]\n: 1\n", BT_TYPE, "5:3: expected a key"},
    /* kinds */
    {GOOD "policy: [joint]\n", BT_TYPE, "5:9: expected a value, got a list"},
    {GOOD "policy: {a: b}\n", BT_TYPE,
     "5:9: expected a value, got a mapping (key: value)"},
    {GOOD "limits: 3\n", BT_TYPE,
     "5:9: expected a mapping (key: value), got a value"},
    {GOOD "links: {a: b}\n", BT_TYPE,
     "5:8: expected a list, got a mapping (key: value)"},
    {"models:\n  - demo\n", BT_TYPE,
     "2:5: expected a mapping (key: value), got a value"},
    {"- a\n", BT_TYPE, "1:1: expected a mapping (key: value), got a list"},
    {"models:\n  - {name: demo, adapters: one}\n", BT_TYPE,
     "2:28: expected a list, got a value"},
    /* the file */
    {"", BT_INVALID, "1:1: the file is empty"},
    {"# nothing\n", BT_INVALID, "1:1: the file is empty"},
    {GOOD "---\nseed: 1\n", BT_INVALID, "5:1: a second document in the file"},
    {"models: &m\n  - {name: demo}\n", BT_UNSUPPORTED,
     "1:9: anchors and aliases are not supported"},
    {GOOD "policy: \"a\\nb\"\n", BT_INVALID,
     "5:9: control character in a value"},
    {"seed: 1\n", BT_INVALID,
     "1:1: at least one model is required under 'models'"},
    {"models: []\n", BT_INVALID,
     "1:9: at least one model is required under 'models'"},
    {MODELS, BT_INVALID,
     "1:1: at least one worker is required under 'workers'"},
    /* values */
    {GOOD "config_schema: 2\n", BT_INVALID,
     "5:16: config_schema is out of range: '2' (allowed: 1)"},
    {GOOD "timeouts: {queue: 30}\n", BT_TYPE,
     "5:19: expected a duration with a unit (such as 30s), got '30'"},
    {GOOD "timeouts: {queue: 25h}\n", BT_INVALID,
     "5:19: queue is out of range: '25h' (allowed: duration, 1us..24h)"},
    {GOOD "timeouts: {queue: 0s}\n", BT_INVALID,
     "5:19: queue is out of range: '0s' (allowed: duration, 1us..24h)"},
    {GOOD "limits: {body: 64}\n", BT_TYPE,
     "5:16: expected a size with a unit (such as 64MiB), got '64'"},
    {GOOD "limits: {body: 64MiB/s}\n", BT_TYPE,
     "5:16: expected a size with a unit (such as 64MiB), got '64MiB/s'"},
    {GOOD "link_default: {rate: 12GB}\n", BT_TYPE,
     "5:22: expected a rate with a unit (such as 12GB/s), got '12GB'"},
    {GOOD "seed: -1\n", BT_TYPE, "5:7: expected a whole number, got '-1'"},
    {GOOD "seed: 0x10\n", BT_TYPE, "5:7: expected a whole number, got '0x10'"},
    {GOOD "seed:\n", BT_TYPE, "5:6: expected a whole number, got ''"},
    {GOOD "seed: 18446744073709551616\n", BT_INVALID,
     "5:7: seed is out of range: '18446744073709551616' (allowed: whole "
     "number)"},
    {GOOD "limits:\n  queue: 0\n", BT_INVALID,
     "6:10: queue is out of range: '0' (allowed: 1..4294967295)"},
    {GOOD "limits:\n  queue: 4294967296\n", BT_INVALID,
     "6:10: queue is out of range: '4294967296' (allowed: 1..4294967295)"},
    {GOOD "listen: {port: 65536}\n", BT_INVALID,
     "5:16: port is out of range: '65536' (allowed: 0..65535, 0 = any free "
     "port)"},
    {GOOD "retry: {budget: 1.5}\n", BT_INVALID,
     "5:17: budget is out of range: '1.5' (allowed: 0..1)"},
    {GOOD "retry: {budget: nan}\n", BT_TYPE,
     "5:17: expected a number, got 'nan'"},
    {WORKER("speedup: 1.2.3"), BT_TYPE, "6:14: expected a number, got '1.2.3'"},
    {WORKER("speedup: 0"), BT_INVALID,
     "6:14: speedup is out of range: '0' (allowed: 0.001..1000000)"},
    {GOOD "tokenizer: byte\n", BT_INVALID,
     "5:12: unknown tokenizer 'byte' (did you mean 'bytes'?)"},
    {GOOD "pd: always\n", BT_INVALID,
     "5:5: unknown pd 'always' (one of: preferred | required)"},
    {GOOD "log: {level: wran}\n", BT_INVALID,
     "5:14: unknown level 'wran' (did you mean 'warn'?)"},
    {WORKER("role: prefil"), BT_INVALID,
     "6:11: unknown role 'prefil' (did you mean 'prefill'?)"},
    {GOOD "planner: {prices: {queue: adaptve}}\n", BT_TYPE,
     "5:27: expected a number, got 'adaptve'"},
    {GOOD "planner: {prices: {queue: 1001}}\n", BT_INVALID,
     "5:27: queue is out of range: '1001' (allowed: adaptive | 0..1000)"},
    {GOOD "planner: {prices: {link: 1.5}}\n", BT_INVALID,
     "5:26: link is out of range: '1.5' (allowed: 0..1)"},
    {GOOD "planner: {hold: onn}\n", BT_INVALID,
     "5:17: unknown hold 'onn' (did you mean 'on'?)"},
    {GOOD "planner: {hold: yes}\n", BT_INVALID,
     "5:17: unknown hold 'yes' (one of: off | on)"},
    {GOOD "planner: {ask_max: 0}\n", BT_INVALID,
     "5:20: ask_max is out of range: '0' (allowed: 1..65536)"},
    {GOOD "slo: {ttft: 2}\n", BT_TYPE,
     "5:13: expected a duration with a unit (such as 30s), got '2'"},
    {GOOD "slo: {ttft_factor: 1001}\n", BT_INVALID,
     "5:20: ttft_factor is out of range: '1001' (allowed: 0..1000, 0 = "
     "none)"},
    {GOOD "journal: {max: 1KiB}\n", BT_INVALID,
     "5:16: max is out of range: '1KiB' (allowed: size, 16KiB..16TiB)"},
    {WORKER("host: {rate: 1GB}"), BT_TYPE,
     "6:18: expected a rate with a unit (such as 12GB/s), got '1GB'"},
    {"models:\n  - {name: demo, engine: {overlap: layers}}\n" WORKERS,
     BT_INVALID, "2:36: unknown overlap 'layers' (did you mean 'layer'?)"},
    /* names that must exist */
    {GOOD "policy: jiont\n", BT_INVALID,
     "5:9: unknown policy 'jiont' (did you mean 'joint'?)"},
    {GOOD "policy: zzz\n", BT_INVALID,
     "5:9: unknown policy 'zzz' (baton check --policies lists them)"},
    {GOOD "policy: jiont:guard=1\n", BT_INVALID,
     "5:9: unknown policy 'jiont' (did you mean 'joint'?)"},
    {GOOD "policy: joint:gaurd=1\n", BT_INVALID,
     "5:9: policy 'joint' has no knob 'gaurd' (did you mean 'guard'?)"},
    {GOOD "policy: round_robin:x=1\n", BT_INVALID,
     "5:9: policy 'round_robin' has no knobs, got 'x'"},
    {GOOD "policy: jsq:requests=2\n", BT_INVALID,
     "5:9: knob 'requests': expected a number from 0 to 1, got '2'"},
    /* sections in sections */
    {GOOD "planner: {prices: {hmb: 1}}\n", BT_INVALID,
     "5:20: unknown key 'hmb' (did you mean 'hbm'?)"},
    {GOOD "planner:\n  prcies: {hbm: 1}\n", BT_INVALID,
     "6:3: unknown key 'prcies' (did you mean 'prices'?)"},
    {GOOD "planner:\n  prices: 1\n", BT_TYPE,
     "6:11: expected a mapping (key: value), got a value"},
    {GOOD "planner: {prices: {hbm: 1, hbm: 1}}\n", BT_DUPLICATE,
     "5:28: repeated key 'hbm'"},
    {"models:\n  - {name: demo, engine: {overlpa: none}}\n", BT_INVALID,
     "2:27: unknown key 'overlpa' (did you mean 'overlap'?)"},
    {WORKER("host: {rat: 1GB/s}"), BT_INVALID,
     "6:12: unknown key 'rat' (did you mean 'rate'?)"},
    {WORKER("compute: h100-8b-tp"), BT_INVALID,
     "6:14: unknown compute preset 'h100-8b-tp' (did you mean "
     "'h100-8b-tp1'?)"},
    {WORKER("model: dmo"), BT_INVALID,
     "6:12: unknown model 'dmo' (did you mean 'demo'?)"},
    {"models: [{name: a}, {name: b}]\n" WORKERS, BT_INVALID,
     "3:5: missing key 'model': there are 2 models"},
    {LINK("from: w9, to: w1"), BT_INVALID,
     "7:12: unknown worker 'w9' (did you mean 'w0'?)"},
    {LINK("from: w0, to: nowhere"), BT_INVALID,
     "7:20: unknown worker 'nowhere'"},
    /* unique */
    {MODELS WORKERS "  - {name: w0, url: 'http://127.0.0.1:2'}\n", BT_DUPLICATE,
     "5:12: repeated worker name 'w0'"},
    {MODELS WORKERS "  - {name: w1, url: 'http://127.0.0.1:1/'}\n",
     BT_DUPLICATE,
     "5:21: repeated url 'http://127.0.0.1:1': worker 'w0' has it"},
    {"models: [{name: a}, {name: a}]\n" WORKERS, BT_INVALID,
     "3:5: missing key 'model': there are 2 models"},
    {"models: [{name: a}, {name: a}]\nworkers:\n"
     "  - {name: w0, model: a, url: 'http://127.0.0.1:1'}\n",
     BT_DUPLICATE, "1:28: repeated model name 'a'"},
    {"models: [{name: a, adapters: [x, x]}]\n" WORKERS, BT_DUPLICATE,
     "1:34: repeated model name 'x'"},
    {GOOD "listen: {port: 9000}\nadmin: {port: 9000}\n", BT_DUPLICATE,
     "6:15: listen and admin both listen on 127.0.0.1 port 9000"},
    {LINK("from: w0, to: w1}\n  - {to: w1, from: w0"), BT_DUPLICATE,
     "8:5: repeated link from 'w0' to 'w1'"},
    {MODELS "workers:\n"
            "  - {name: a, url: 'http://h:1', events: 'tcp://h:5'}\n"
            "  - {name: b, url: 'http://h:2', events: 'tcp://h:5'}\n",
     BT_DUPLICATE, "5:42: repeated events 'tcp://h:5': worker 'a' has it"},
    /* shapes of values */
    {MODELS "workers:\n  - {name: w0, url: 'https://a:1'}\n", BT_UNSUPPORTED,
     "4:21: https is not supported: expected http://HOST:PORT, got "
     "'https://a:1'"},
    {MODELS "workers:\n  - {name: w0, url: 'http://a'}\n", BT_INVALID,
     "4:21: expected http://HOST:PORT, got 'http://a'"},
    {MODELS "workers:\n  - {name: w0, url: 'http://a:1/v1'}\n", BT_INVALID,
     "4:21: expected http://HOST:PORT, got 'http://a:1/v1'"},
    {MODELS "workers:\n  - {name: w0, url: 'http://a:0'}\n", BT_INVALID,
     "4:21: expected http://HOST:PORT, got 'http://a:0'"},
    {MODELS "workers:\n  - {name: w0, url: 'http://u@a:1'}\n", BT_INVALID,
     "4:21: expected http://HOST:PORT, got 'http://u@a:1'"},
    {MODELS "workers:\n  - {name: '*', url: 'http://a:1'}\n", BT_INVALID,
     "4:12: a worker name has 1 to 63 letters, digits or any of ._-, got "
     "'*'"},
    {MODELS "workers:\n  - {name: '', url: 'http://a:1'}\n", BT_TYPE,
     "4:12: expected name, got ''"},
    {"models: [{name: 'a b'}]\n" WORKERS, BT_INVALID,
     "1:17: a name has 1 to 128 letters, digits or any of ._-/:@+, got "
     "'a b'"},
    {WORKER("events: 'http://a:1'"), BT_INVALID,
     "6:13: expected tcp://HOST:PORT or ipc://PATH, got 'http://a:1'"},
    {GOOD "listen: {address: localhost}\n", BT_INVALID,
     "5:19: expected an IPv4 or IPv6 address, got 'localhost'"},
    {LINK("class: 'a b'"), BT_INVALID,
     "7:13: a class has 1 to 63 letters, digits or any of ._-, got 'a b'"},
    {GOOD "link_default: {class: a/b}\n", BT_INVALID,
     "5:23: a class has 1 to 63 letters, digits or any of ._-, got 'a/b'"},
    /* contradictions */
    {GOOD "lease: {margin: 30s}\n", BT_INVALID,
     "5:17: lease.margin must be shorter than lease.duration"},
    {GOOD "lease:\n  duration: 5s\n", BT_INVALID,
     "6:13: lease.margin must be shorter than lease.duration"},
    {GOOD "limits: {body: 2GiB}\n", BT_INVALID,
     "5:16: limits.body must not be larger than limits.body_total"},
    {WORKER("replay: 'tcp://a:1'"), BT_INVALID, "6:13: replay without events"},
    {WORKER("role: prefill"), BT_INVALID,
     "2:12: no worker with role decode or both serves model 'demo'"},
    {WORKER("role: decode\npd: required"), BT_INVALID,
     "7:5: pd is required, but no worker with role prefill or both serves "
     "model 'demo'"},
    {"models:\n  - {name: demo, engine: {pieces: 4}}\n" WORKERS, BT_INVALID,
     "2:35: pieces need overlap: chunk or layer"},
    {"models:\n  - name: demo\n    engine: {overlap: chunk, late_decode: "
     "off}\n" WORKERS,
     BT_INVALID, "3:13: overlap needs pieces: 2 or more"},
    {"models:\n  - name: demo\n    engine: {allocate_first: on, late_decode: "
     "on}\n" WORKERS,
     BT_INVALID,
     "3:47: late_decode must be off with overlap or allocate_first"},
    {"models:\n  - name: demo\n    engine: {overlap: layer, pieces: "
     "4}\n" WORKERS,
     BT_INVALID,
     "3:13: late_decode must be off with overlap or allocate_first"},
    {LINK("from: w0, to: w0"), BT_INVALID, "7:20: a link from 'w0' to itself"},
    /* KV events */
    {GOOD "events: {bind: 'tcp://*:5600'}\n", BT_INVALID,
     "5:16: no worker has an events_topic: what arrives here "
     "would be nobody's"},
    {GOOD "index:\n  snapshot: /nowhere/at/all\n", BT_INVALID,
     "6:13: its folder '/nowhere/at/': No such file or "
     "directory"},
    {GOOD "events: {bind: 'tcp://*'}\n", BT_INVALID,
     "5:16: expected tcp://ADDRESS:PORT (* = any address) or ipc://PATH, got "
     "'tcp://*'"},
    {GOOD "events: {held_bytes: 2GiB}\n", BT_INVALID,
     "5:22: events.held_bytes must not be larger than events.held_total"},
    {GOOD "events: {replays: 0}\n", BT_INVALID,
     "5:19: replays is out of range: '0' (allowed: 1..65536)"},
    {GOOD "index: {approximate_blocks: 0}\n", BT_INVALID,
     "5:29: approximate_blocks is out of range: '0' (allowed: "
     "1..4294967295)"},
    {WORKER("ranks: 65"), BT_INVALID,
     "6:12: ranks is out of range: '65' (allowed: 1..64)"},
    {WORKER("removals: last"), BT_INVALID,
     "6:15: unknown removals 'last' (one of: auto | per_copy | last_copy)"},
    {WORKER("events_topic: a\n    events: 'tcp://a:1'"), BT_INVALID,
     "6:19: events and events_topic exclude each other: the engine binds, or "
     "it connects to events.bind"},
    {WORKER("events_topic: a"), BT_INVALID,
     "6:19: events_topic without events.bind"},
    {"events: {bind: 'tcp://*:5600'}\n" MODELS "workers:\n"
     "  - {name: a, url: 'http://h:1', events_topic: kv@h}\n"
     "  - {name: b, url: 'http://h:2', events_topic: kv@h@m}\n",
     BT_DUPLICATE,
     "6:48: topics of workers 'a' and 'b' cannot be told apart: one begins "
     "with the other"},
    {WORKER("events: 'tcp://a:65534'\n    ranks: 3"), BT_INVALID,
     "6:13: port 65536 of rank 2 is out of range: 1..65535"},
    {WORKER("events: 'tcp://a:1'\n    replay: 'tcp://a:65500'\n    ranks: "
            "64"),
     BT_INVALID, "7:13: port 65563 of rank 63 is out of range: 1..65535"},
    {WORKER("events: 'ipc:///e'\n    ranks: 2"), BT_INVALID,
     "6:13: 2 ranks need tcp://HOST:PORT, got 'ipc:///e'"},
    {WORKER("events: 'tcp://a:5557'\n    replay: 'tcp://a:5558'\n    ranks: "
            "2"),
     BT_INVALID,
     "7:13: replay shares a port with events: 2 ranks from 5557 and from "
     "5558"},
    {MODELS "workers:\n"
            "  - {name: a, url: 'http://h:1', events: 'tcp://h:5', ranks: 3}\n"
            "  - {name: b, url: 'http://h:2', events: 'tcp://h:7'}\n",
     BT_DUPLICATE, "5:42: repeated events 'tcp://h:7': worker 'a' has it"},
    {"models:\n  - {name: demo, engine_hash: 'sha256:0'}\n" WORKERS, BT_INVALID,
     "2:31: unknown hash 'sha256' (sha256_cbor or xxhash_cbor)"},
    {"models:\n  - {name: demo, engine_hash: none}\n" WORKERS, BT_INVALID,
     "2:31: unknown hash 'none' (sha256_cbor or xxhash_cbor)"},
    {"models:\n  - {name: demo, engine_hash: sha256_cbor}\n" WORKERS,
     BT_INVALID,
     "2:31: expected sha256_cbor:SEED with the engines' PYTHONHASHSEED, "
     "0..4294967295, got 'sha256_cbor'"},
    {"models:\n  - {name: demo, engine_hash: 'sha256_cbor:random'}\n" WORKERS,
     BT_INVALID,
     "2:31: expected sha256_cbor:SEED with the engines' PYTHONHASHSEED, "
     "0..4294967295, got 'sha256_cbor:random'"},
};

static void write_file(char *path, const void *data, size_t size)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), (ssize_t)size);
    close(fd);
}

/* Load the text; the fault's text without the file name lands in `fault`. */
static enum bt_status load_text(const char *yaml, size_t size, char *fault,
                                size_t fault_size)
{
    char path[] = "/tmp/baton-config-XXXXXX";
    char error[512];
    static struct bt_config untouched;
    struct bt_config *config = &untouched;
    write_file(path, yaml, size);
    enum bt_status status = bt_config_load(path, &config, error, sizeof(error));
    unlink(path);
    if (status == BT_OK) {
        bt_config_destroy(config);
        error[0] = '\0';
    } else {
        assert_ptr_equal(config, &untouched);
        assert_memory_equal(error, path, strlen(path));
    }
    const char *rest = error[0] ? error + strlen(path) + 1 : "";
    snprintf(fault, fault_size, "%s", rest);
    return status;
}

static void faults_are_exact(void **state)
{
    (void)state;
    char fault[512];
    for (size_t i = 0; i < sizeof(SAMPLES) / sizeof(SAMPLES[0]); i++) {
        const struct sample *s = &SAMPLES[i];
        enum bt_status status =
            load_text(s->yaml, strlen(s->yaml), fault, sizeof(fault));
        if (status != s->status || strcmp(fault, s->fault) != 0)
            print_error("sample %zu, expected %s \"%s\":\n%s\n", i,
                        bt_status_name(s->status), s->fault, s->yaml);
        assert_string_equal(fault, s->fault);
        assert_string_equal(bt_status_name(status), bt_status_name(s->status));
    }
}

/* libyaml words these; ours are file, line and column. */
static void syntax_faults_have_positions(void **state)
{
    (void)state;
    static const struct sample samples[] = {
        {"models: [\n", BT_INVALID, "2:1: not YAML: "},
        {"seed: 1\n\tpolicy: joint\n", BT_INVALID, "2:1: not YAML: "},
        {"seed: 'x\n", BT_INVALID, "2:1: not YAML: "},
        {"seed: 1\nlog: \xff\n", BT_INVALID, "2:6: not YAML: "},
    };
    char fault[512];
    for (size_t i = 0; i < sizeof(samples) / sizeof(samples[0]); i++) {
        enum bt_status status = load_text(
            samples[i].yaml, strlen(samples[i].yaml), fault, sizeof(fault));
        assert_int_equal(status, samples[i].status);
        fault[strlen(samples[i].fault)] = '\0';
        assert_string_equal(fault, samples[i].fault);
    }
}

static void the_good_stub_is_good(void **state)
{
    (void)state;
    char fault[512];
    assert_int_equal(load_text(GOOD, strlen(GOOD), fault, sizeof(fault)),
                     BT_OK);
}

static void files_that_cannot_be_read(void **state)
{
    (void)state;
    char error[512];
    struct bt_config *config = NULL;
    assert_int_equal(bt_config_load("/nonexistent/baton.yaml", &config, error,
                                    sizeof(error)),
                     BT_NOT_FOUND);
    assert_string_equal(error,
                        "/nonexistent/baton.yaml: No such file or directory");
    assert_int_equal(bt_config_load("/", &config, error, sizeof(error)), BT_IO);
    assert_null(config);
}

static char *repeat(const char *head, const char *item, size_t times,
                    const char *tail, size_t *size_out)
{
    size_t item_size = strlen(item), head_size = strlen(head);
    size_t size = head_size + times * item_size + strlen(tail);
    char *text = malloc(size + 1);
    assert_non_null(text);
    memcpy(text, head, head_size);
    for (size_t i = 0; i < times; i++)
        memcpy(text + head_size + i * item_size, item, item_size);
    memcpy(text + head_size + times * item_size, tail, strlen(tail) + 1);
    *size_out = size;
    return text;
}

static void check_limit(const char *head, const char *item, size_t times,
                        const char *tail, enum bt_status expected,
                        const char *start)
{
    size_t size;
    char fault[512];
    char *text = repeat(head, item, times, tail, &size);
    enum bt_status status = load_text(text, size, fault, sizeof(fault));
    free(text);
    assert_string_equal(bt_status_name(status), bt_status_name(expected));
    fault[strlen(start)] = '\0';
    assert_string_equal(fault, start);
}

static void sizes_are_limited(void **state)
{
    (void)state;
    check_limit("policy: ", "a", 1025, "\n", BT_LIMIT,
                "1:9: value longer than 1024 bytes");
    check_limit("", "k", 60, ": 1\n", BT_INVALID, "1:1: unknown key 'kkk");
    check_limit("", "# comment to fill\n", 300000, "", BT_TOO_LARGE,
                " larger than 4 MiB");
    check_limit("links: ", "[", 2000, "\n", BT_TYPE,
                "1:9: expected a mapping (key: value), got a list");
    /* libcyaml's own report: one more model than the limit of 64. */
    check_limit("models:\n", "  - {name: a}\n", 65, WORKERS, BT_TYPE, "");
    check_limit("models:\n  - name: a\n    adapters: [a", ",a", 300000, "]\n",
                BT_LIMIT, "3:");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_stub_is_good),
        cmocka_unit_test(faults_are_exact),
        cmocka_unit_test(syntax_faults_have_positions),
        cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(sizes_are_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
