/* File systems that cannot take a pool: a full one, and one without O_DIRECT.
 * Each is mounted in a mount namespace of a child's own; where that is not
 * allowed, the test is skipped and says why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "tier_bed.h"
#include <cmocka.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_OK, CHILD_SKIP = 77, CHILD_WRONG = 1 };

static struct tier_bed bed;

static int mount_it(const char *type, const char *options)
{
    int flags = CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER);

    if (unshare(flags) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", bed.dir, type, 0, options) != 0) {
        fprintf(stderr, "skipped: mounting %s: %s\n", type, strerror(errno));
        return CHILD_SKIP;
    }
    return CHILD_OK;
}

static int expect(enum bt_status status, enum bt_status want, const char *error,
                  const char *text)
{
    if (status == want && strstr(error, text))
        return CHILD_OK;
    fprintf(stderr, "%s: %s\n", bt_status_name(status), error);
    return CHILD_WRONG;
}

/* 1 MiB of disk, a pool of 4 MiB: refused with figures, nothing left; a pool
 * that fits is made; it cannot be made larger, and is then unharmed. */
static int full_child(void)
{
    struct bt_nvme_config config = tier_bed_config(&bed, 64);
    struct bt_nvme_pool *pool = NULL;
    char error[512] = "";
    enum bt_status status;
    unsigned char *block;
    int code = mount_it("tmpfs", "size=1m");

    if (code != CHILD_OK)
        return code;
    status = bt_nvme_pool_open(bed.loop, &config, &pool, error, sizeof(error));
    if (status == BT_UNSUPPORTED)
        return CHILD_SKIP; /* tmpfs without O_DIRECT: Linux before 6.6 */
    code = expect(status, BT_LIMIT, error, "needs 4202496 bytes more");
    if (code == CHILD_OK)
        code = expect(status, BT_LIMIT, error, "free: No space left");
    if (code != CHILD_OK || access(bed.path, F_OK) == 0)
        return CHILD_WRONG;
    config.block_count = 8;
    pool = tier_bed_open(&bed, &config);
    block = tier_blocks(bed.block_bytes, 1);
    tier_fill(block, bed.block_bytes, 5);
    assert_int_equal(tier_store(&bed, pool, 5, block), BT_OK);
    bt_nvme_pool_close(pool);
    config.block_count = 64;
    status = bt_nvme_pool_open(bed.loop, &config, &pool, error, sizeof(error));
    if (status != BT_LIMIT)
        return CHILD_WRONG;
    config.block_count = 8;
    pool = tier_bed_open(&bed, &config);
    memset(block, 0, bed.block_bytes);
    assert_int_equal(tier_load(&bed, pool, 5, block), BT_OK);
    assert_true(tier_is(block, bed.block_bytes, 5));
    bt_nvme_pool_close(pool);
    free(block);
    return CHILD_OK;
}

static int no_direct_child(void)
{
    const struct bt_nvme_config config = tier_bed_config(&bed, 4);
    struct bt_nvme_pool *pool = NULL;
    char error[512] = "";
    enum bt_status status;
    int code = mount_it("ramfs", NULL);

    if (code != CHILD_OK)
        return code;
    status = bt_nvme_pool_open(bed.loop, &config, &pool, error, sizeof(error));
    if (status == BT_OK) {
        bt_nvme_pool_close(pool);
        return CHILD_SKIP; /* a kernel whose ramfs has it */
    }
    code = expect(status, BT_UNSUPPORTED, error, "has no O_DIRECT");
    return access(bed.path, F_OK) == 0 ? CHILD_WRONG : code;
}

static void in_child(int (*fn)(void))
{
    pid_t pid;
    int status = -1;

    tier_bed_init(&bed, 65536);
    pid = fork();
    if (pid == 0)
        _exit(fn());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    tier_bed_fini(&bed);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_SKIP)
        skip();
    assert_int_equal(WEXITSTATUS(status), CHILD_OK);
}

static void test_full(void **state)
{
    (void)state;
    in_child(full_child);
}

static void test_no_direct(void **state)
{
    (void)state;
    in_child(no_direct_child);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_no_direct),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
