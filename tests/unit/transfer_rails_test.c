/* Rails: one test per field failure, on node maps written down by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "baton/transfer/rails.h"

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static struct bt_node_map map;
static char why[160];

static struct bt_nic *add_nic(const char *device, const char *pci, uint8_t port)
{
    struct bt_nic *nic = &map.nics[map.nic_count++];

    memset(nic, 0, sizeof(*nic));
    snprintf(nic->device, sizeof(nic->device), "%s", device);
    snprintf(nic->pci, sizeof(nic->pci), "%s", pci);
    nic->port = port;
    nic->link = BT_NIC_INFINIBAND;
    nic->is_up = true;
    nic->rate_bytes_per_s = 50000000000;
    return nic;
}

static struct bt_gpu *add_gpu(const char *pci)
{
    struct bt_gpu *gpu = &map.gpus[map.gpu_count++];

    memset(gpu, 0, sizeof(*gpu));
    snprintf(gpu->pci, sizeof(gpu->pci), "%s", pci);
    return gpu;
}

static void reset(void)
{
    map.nic_count = map.gpu_count = 0;
}

/* ---- E09: one port per HCA before a second of the same ---- */

static void test_e09_one_port_per_hca(void **state)
{
    uint32_t nics[8];

    (void)state;
    reset();
    add_nic("mlx5_0", "0000:1b:00.0", 1);
    add_nic("mlx5_0", "0000:1b:00.0", 2);
    add_nic("mlx5_1", "0000:5e:00.0", 1);
    add_nic("mlx5_1", "0000:5e:00.0", 2);
    assert_int_equal(bt_rails_choose(&map, NULL, 2, nics), 2);
    assert_int_equal(nics[0], 0);
    assert_int_equal(nics[1], 2);
    assert_int_equal(bt_rails_choose(&map, NULL, 8, nics), 4);
    assert_int_equal(nics[2], 1);
    assert_int_equal(nics[3], 3);
    /* The other firmware: a PCI function per port. */
    reset();
    add_nic("mlx5_0", "0000:1b:00.0", 1);
    add_nic("mlx5_1", "0000:1b:00.1", 1);
    add_nic("mlx5_2", "0000:5e:00.0", 1);
    assert_int_equal(bt_rails_choose(&map, NULL, 2, nics), 2);
    assert_int_equal(nics[0], 0);
    assert_int_equal(nics[1], 2);
    /* A faster second port does not overtake another card. */
    map.nics[1].rate_bytes_per_s *= 2;
    assert_int_equal(bt_rails_choose(&map, NULL, 2, nics), 2);
    assert_int_equal(nics[0], 1);
    assert_int_equal(nics[1], 2);
    /* Software devices have no PCI address: the device is the card. */
    reset();
    add_nic("rxe0", "", 1);
    add_nic("rxe0", "", 2);
    add_nic("rxe1", "", 1);
    assert_int_equal(bt_rails_choose(&map, NULL, 2, nics), 2);
    assert_int_equal(nics[1], 2);
}

/* ---- E10: the nearest NIC, by PCI identity, at each end ---- */

static void test_e10_nearest_to_the_gpu(void **state)
{
    char pci[16];
    uint32_t nics[2];

    (void)state;
    reset();
    add_nic("mlx5_0", "0000:1b:00.0", 1);
    add_nic("mlx5_1", "0000:9e:00.0", 1);
    for (unsigned int g = 0; g < 8; g++) {
        struct bt_gpu *gpu;

        snprintf(pci, sizeof(pci), "0000:%02x:00.0",
                 g < 4 ? 0x10 + g : 0x90 + g);
        gpu = add_gpu(pci);
        gpu->distance[0] = g < 4 ? 0 : 3;
        gpu->distance[1] = g < 4 ? 3 : 0;
    }
    for (uint32_t g = 0; g < 8; g++) {
        assert_int_equal(bt_rails_choose(&map, map.gpus[g].pci, 1, nics), 1);
        assert_int_equal(nics[0], g < 4 ? 0 : 1);
    }
    /* The driver's way to write the address; one that is not there; none. */
    assert_int_equal(bt_rails_choose(&map, "00000000:97:00.0", 1, nics), 1);
    assert_int_equal(nics[0], 1);
    assert_int_equal(bt_rails_choose(&map, "0000:77:00.0", 1, nics), 1);
    assert_int_equal(nics[0], 0);
    assert_int_equal(bt_rails_choose(&map, NULL, 1, nics), 1);
    assert_int_equal(nics[0], 0);
    /* Unknown distance comes last, before it the other socket. */
    map.gpus[0].distance[0] = 255;
    assert_int_equal(bt_rails_choose(&map, map.gpus[0].pci, 1, nics), 1);
    assert_int_equal(nics[0], 1);
}

/* The order in which devices were found does not matter. */
static void test_choice_is_by_identity(void **state)
{
    const uint64_t seed = 90;
    struct bt_rng rng;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (int round = 0; round < 200; round++) {
        uint32_t nics[6];
        static const char *const pci[] = {"0000:1b:00.0", "0000:1b:00.1",
                                          "0000:5e:00.0", "0001:02:00.0",
                                          "0000:5e:00.1"};
        static const char *const right[] = {"0000:1b:00.0", "0000:5e:00.0",
                                            "0001:02:00.0", "0000:1b:00.1",
                                            "0000:5e:00.1"};
        uint32_t order[5] = {0, 1, 2, 3, 4};

        reset();
        for (uint32_t i = 5; i > 1; i--) {
            uint32_t k = (uint32_t)bt_rng_below(&rng, i), t = order[k];

            order[k] = order[i - 1];
            order[i - 1] = t;
        }
        for (uint32_t i = 0; i < 5; i++)
            add_nic(i % 2 ? "mlx5_1" : "mlx5_0", pci[order[i]], 1);
        add_nic("", "0000:01:00.0", 1)->link = BT_NIC_ETHERNET;
        assert_int_equal(bt_rails_choose(&map, NULL, 6, nics), 5);
        for (uint32_t i = 0; i < 5; i++)
            assert_string_equal(map.nics[nics[i]].pci, right[i]);
        for (uint32_t i = 0; i < 5; i++)
            map.nics[i].is_up = false;
        assert_int_equal(bt_rails_choose(&map, NULL, 6, nics), 1);
        assert_int_equal(nics[0], 5); /* TCP when there is nothing else */
    }
}

/* ---- E12, E14: who may talk to whom ---- */

static struct bt_nic port(const char *device, enum bt_nic_link link,
                          uint64_t subnet, uint8_t bits)
{
    struct bt_nic nic = {.port = 1,
                         .link = link,
                         .is_up = true,
                         .subnet = subnet,
                         .subnet_bits = bits};

    snprintf(nic.device, sizeof(nic.device), "%s", device);
    return nic;
}

static void add_gid(struct bt_nic *nic, uint8_t index, enum bt_gid_kind kind,
                    const char *hex)
{
    struct bt_gid *gid = &nic->gids[nic->gid_count++];

    memset(gid, 0, sizeof(*gid));
    gid->index = index;
    gid->kind = kind;
    for (size_t i = 0; hex[i] != '\0' && i < 32; i++) {
        unsigned int d =
            (unsigned int)(hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10);

        gid->raw[i / 2] |= (uint8_t)(i % 2 ? d : d << 4);
    }
}

static void assert_reach(const struct bt_nic *a, const struct bt_nic *b)
{
    why[0] = '\0';
    if (bt_rails_reach(a, b, why, sizeof(why)) != BT_OK ||
        bt_rails_reach(b, a, why, sizeof(why)) != BT_OK)
        fail_msg("%s", why);
}

/* Refused both ways, and the reason has this word in it. */
static void assert_refused(const struct bt_nic *a, const struct bt_nic *b,
                           const char *word)
{
    for (int i = 0; i < 2; i++) {
        why[0] = '\0';
        assert_int_equal(bt_rails_reach(i ? b : a, i ? a : b, why, sizeof(why)),
                         BT_INCOMPATIBLE);
        if (strstr(why, word) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", why, word);
    }
}

static struct bt_nic roce(const char *device, uint32_t net, uint8_t bits,
                          enum bt_gid_kind kind)
{
    struct bt_nic nic = port(device, BT_NIC_ROCE, net, bits);

    add_gid(&nic, 0, BT_GID_LINK_LOCAL, "fe80");
    add_gid(&nic, 1, kind, "00000000000000000000ffff0a000101");
    return nic;
}

static void test_e12_reach(void **state)
{
    const struct bt_nic one = roce("a", 0x0a000100, 24, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic same = roce("b", 0x0a000100, 24, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic two = roce("c", 0x0a000200, 24, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic wide = roce("d", 0x0a000000, 16, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic old = roce("e", 0x0a000100, 24, BT_GID_ROCE_V1);
    const struct bt_nic old2 = roce("f", 0x0a000100, 24, BT_GID_ROCE_V1);
    const struct bt_nic lost = roce("g", 0, 0, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic ib = port("h", BT_NIC_INFINIBAND, 0xfe80ull << 48, 64);
    const struct bt_nic ib2 = port("i", BT_NIC_INFINIBAND, 0xfec0ull << 48, 64);
    struct bt_nic both = roce("j", 0x0a000100, 24, BT_GID_ROCE_V2_IPV4);
    struct bt_nic down = one;

    (void)state;
    assert_reach(&one, &one);
    assert_reach(&one, &same);
    assert_refused(&one, &two, "subnet");
    assert_refused(&one, &wide, "subnet");
    assert_refused(&one, &lost, "subnet");
    assert_refused(&one, &old, "RoCE version");
    assert_reach(&old, &old2);
    add_gid(&both, 2, BT_GID_ROCE_V1, "fe80");
    assert_reach(&both, &old);
    assert_reach(&both, &one);
    assert_refused(&one, &ib, "InfiniBand");
    assert_reach(&ib, &ib);
    assert_refused(&ib, &ib2, "subnet");
    down.is_up = false;
    assert_refused(&down, &same, "a:1 is down");
}

static void test_e12_ipv6(void **state)
{
    struct bt_nic a = port("a", BT_NIC_ROCE, 0, 0), b = a, c = a, d = a;

    (void)state;
    add_gid(&a, 0, BT_GID_LINK_LOCAL, "fe80");
    add_gid(&b, 0, BT_GID_LINK_LOCAL, "fe80");
    assert_reach(&a, &b); /* nothing better on either side */
    add_gid(&a, 1, BT_GID_ROCE_V2_IPV6, "fd000000000000010000000000000001");
    assert_refused(&a, &b, "RoCE version");
    add_gid(&c, 4, BT_GID_ROCE_V2_IPV6, "fd000000000000010000000000000002");
    add_gid(&d, 4, BT_GID_ROCE_V2_IPV6, "fd000000000000020000000000000002");
    assert_reach(&a, &c);
    assert_refused(&a, &d, "subnet");
}

static struct bt_nic member(const char *device, uint16_t key, uint16_t other)
{
    struct bt_nic nic = port(device, BT_NIC_INFINIBAND, 0xfe80ull << 48, 64);

    nic.pkeys[0] = key;
    nic.pkeys[1] = other;
    nic.pkey_count = other != 0 ? 2 : 1;
    return nic;
}

static void test_e14_partitions(void **state)
{
    const struct bt_nic limited = member("p", 0x0123, 0);
    const struct bt_nic limited2 = member("d", 0x0123, 0);
    const struct bt_nic full = member("f", 0x8123, 0);
    const struct bt_nic other = member("o", 0x8124, 0);
    const struct bt_nic more = member("m", 0x7fff, 0x8123);
    const struct bt_nic none =
        port("n", BT_NIC_INFINIBAND, 0xfe80ull << 48, 64);
    const struct bt_nic zero = member("z", 0x8000, 0);

    (void)state;
    assert_refused(&limited, &limited2, "limited members of partition 0x0123");
    assert_reach(&limited, &full);
    assert_reach(&full, &full);
    assert_refused(&full, &other, "no partition");
    assert_reach(&more, &limited);
    assert_refused(&more, &other, "no partition");
    assert_reach(&none, &limited);                /* not known there */
    assert_refused(&zero, &zero, "no partition"); /* 0 is no partition */
}

/* ---- E13: GIDs by kind ---- */

static void test_e13_gids(void **state)
{
    struct bt_nic a = port("a", BT_NIC_ROCE, 0x0a000100, 24);
    struct bt_nic b = a, c = a, d = a, e = a;

    (void)state;
    assert_int_equal(bt_gid_choose(&a), -1);
    add_gid(&a, 0, BT_GID_LINK_LOCAL, "fe80");
    add_gid(&a, 1, BT_GID_LINK_LOCAL, "fe80");
    assert_int_equal(bt_gid_choose(&a), 0);
    add_gid(&a, 2, BT_GID_ROCE_V1, "00000000000000000000ffff0a000101");
    assert_int_equal(bt_gid_choose(&a), 2);
    add_gid(&a, 3, BT_GID_ROCE_V2_IPV4, "00000000000000000000ffff0a000101");
    assert_int_equal(bt_gid_choose(&a), 3);
    add_gid(&b, 0, BT_GID_LINK_LOCAL, "fe80");
    add_gid(&b, 1, BT_GID_ROCE_V2_IPV4, "00000000000000000000ffff0a000102");
    add_gid(&b, 5, BT_GID_ROCE_V2_IPV6, "fd00");
    assert_int_equal(bt_gid_choose(&b), 1);
    add_gid(&c, 0, BT_GID_LINK_LOCAL, "fe80");
    add_gid(&c, 7, BT_GID_ROCE_V2_IPV6, "fd00");
    add_gid(&c, 8, BT_GID_ROCE_V1, "fd00");
    assert_int_equal(bt_gid_choose(&c), 7);
    add_gid(&d, 0, BT_GID_NONE, "");
    add_gid(&d, 3, BT_GID_IB, "fe80");
    assert_int_equal(bt_gid_choose(&d), 3);
    /* Two IPv4 addresses: the one of the port's own network. */
    add_gid(&e, 2, BT_GID_ROCE_V2_IPV4, "00000000000000000000ffff0a000901");
    add_gid(&e, 4, BT_GID_ROCE_V2_IPV4, "00000000000000000000ffff0a000107");
    add_gid(&e, 6, BT_GID_ROCE_V2_IPV4, "00000000000000000000ffff0a000109");
    assert_int_equal(bt_gid_choose(&e), 4);
}

/* ---- E15: a port that is down takes out its own rail only ---- */

static void test_e15_port_down(void **state)
{
    uint32_t nics[4];

    (void)state;
    reset();
    add_nic("mlx5_0", "0000:1b:00.0", 1);
    add_nic("mlx5_0", "0000:1b:00.0", 2);
    map.nics[0].is_up = false;
    assert_int_equal(bt_rails_choose(&map, NULL, 2, nics), 1);
    assert_int_equal(nics[0], 1);
    /* Back, but trained at a quarter: used, behind the other. */
    map.nics[0].is_up = true;
    map.nics[0].rate_bytes_per_s /= 4;
    assert_int_equal(bt_rails_choose(&map, NULL, 2, nics), 2);
    assert_int_equal(nics[0], 1);
    assert_int_equal(nics[1], 0);
    map.nics[0].is_up = map.nics[1].is_up = false;
    assert_int_equal(bt_rails_choose(&map, NULL, 2, nics), 0);
}

/* ---- pairs ---- */

static void test_pairs(void **state)
{
    const struct bt_nic a1 = roce("a1", 0x0a000100, 24, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic a2 = roce("a2", 0x0a000200, 24, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic b1 = roce("b1", 0x0a000100, 24, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic b2 = roce("b2", 0x0a000200, 24, BT_GID_ROCE_V2_IPV4);
    const struct bt_nic *const mine[] = {&a1, &a2};
    const struct bt_nic *const theirs[] = {&b2, &b1};
    const struct bt_nic *const ones[] = {&a1, &a1, &a1};
    uint32_t pairs[3][2];

    (void)state;
    assert_int_equal(bt_rails_pair(mine, 2, theirs, 2, pairs), 2);
    assert_int_equal(pairs[0][0], 0);
    assert_int_equal(pairs[0][1], 1);
    assert_int_equal(pairs[1][0], 1);
    assert_int_equal(pairs[1][1], 0);
    assert_int_equal(bt_rails_pair(mine, 2, theirs, 1, pairs), 1);
    assert_int_equal(pairs[0][0], 1);
    assert_int_equal(pairs[0][1], 0);
    assert_int_equal(bt_rails_pair(ones, 3, theirs, 2, pairs), 1);
    assert_int_equal(bt_rails_pair(mine, 0, theirs, 2, pairs), 0);
    assert_int_equal(bt_rails_pair(ones, 3, ones, 3, pairs), 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(pairs[i][0] == i && pairs[i][1] == i);
}

/* Largest number of pairs by trying every choice, for the brute force below. */
static uint32_t most_pairs(const bool ok[5][5], uint32_t mine, uint32_t theirs)
{
    uint32_t best = 0, total = 1;

    for (uint32_t i = 0; i < mine; i++)
        total *= theirs + 1;
    for (uint32_t code = 0; code < total; code++) {
        uint32_t rest = code, used = 0, pairs = 0, i = 0;

        for (; i < mine; i++, rest /= theirs + 1) {
            uint32_t t = rest % (theirs + 1);

            if (t == theirs)
                continue;
            if (!ok[i][t] || used & 1u << t)
                break;
            used |= 1u << t;
            pairs++;
        }
        if (i == mine && pairs > best)
            best = pairs;
    }
    return best;
}

/* Partitions make reach irregular: as many pairs as can be, all allowed. */
static void test_pairs_brute_force(void **state)
{
    const uint64_t seed = 91;
    struct bt_rng rng;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (int round = 0; round < 300; round++) {
        struct bt_nic nics[10];
        const struct bt_nic *list[10];
        uint32_t mine = (uint32_t)bt_rng_below(&rng, 6), used = 0;
        uint32_t theirs = (uint32_t)bt_rng_below(&rng, 6), pairs[5][2], count;
        bool ok[5][5] = {{false}};

        for (uint32_t i = 0; i < 10; i++) {
            uint16_t key = (uint16_t)(0x8001 + bt_rng_below(&rng, 4));

            nics[i] = member("x", key, (uint16_t)(1 + bt_rng_below(&rng, 4)));
            list[i] = &nics[i];
        }
        for (uint32_t i = 0; i < mine; i++) {
            for (uint32_t t = 0; t < theirs; t++)
                ok[i][t] = bt_rails_reach(&nics[i], &nics[5 + t], why,
                                          sizeof(why)) == BT_OK;
        }
        count = bt_rails_pair(list, mine, list + 5, theirs, pairs);
        assert_int_equal(count, most_pairs(ok, mine, theirs));
        for (uint32_t i = 0; i < count; i++) {
            assert_true(i == 0 || pairs[i - 1][0] < pairs[i][0]);
            assert_true(pairs[i][0] < mine && pairs[i][1] < theirs);
            assert_true(ok[pairs[i][0]][pairs[i][1]]);
            assert_false(used & 1u << pairs[i][1]);
            used |= 1u << pairs[i][1];
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(bt_node_warn_name(BT_WARN_MEMLOCK), "memlock");
    assert_string_equal(bt_node_warn_name(BT_WARN_LINK_LOCAL), "link_local");
    for (int i = BT_WARN_MEMLOCK; i <= BT_WARN_LINK_LOCAL; i++) {
        for (int k = BT_WARN_MEMLOCK; k < i; k++)
            assert_string_not_equal(bt_node_warn_name((enum bt_node_warn)i),
                                    bt_node_warn_name((enum bt_node_warn)k));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e09_one_port_per_hca),
        cmocka_unit_test(test_e10_nearest_to_the_gpu),
        cmocka_unit_test(test_choice_is_by_identity),
        cmocka_unit_test(test_e12_reach),
        cmocka_unit_test(test_e12_ipv6),
        cmocka_unit_test(test_e13_gids),
        cmocka_unit_test(test_e14_partitions),
        cmocka_unit_test(test_e15_port_down),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_pairs_brute_force),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests_name("rails", tests, NULL, NULL);
}
