/* Control of the fake driver library; a test finds these by dlsym in the very
 * object that the device opened. */
#ifndef TESTS_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_H

struct fake_cuda_control {
    /* Let the nth call (1: the next) of a function fail with a code, once. */
    void (*break_call)(const char *function, int nth, int code);
    void (*set)(int can_peer, int dma_buf, int devices);
    /* Broken rules so far, and the last one in words. */
    int (*faults)(const char **last_out);
    int (*live)(void); /* allocations, events, streams, pins */
    long (*calls)(const char *function);
    void (*reset)(void);
};
typedef const struct fake_cuda_control *(*fake_cuda_control_fn)(void);

#endif
