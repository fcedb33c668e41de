/* Runs nginx or haproxy on a free port with a configuration of its own. Both
 * get one worker in one process (so that its CPU time can be read), keep-alive
 * to the worker, no logs, no buffering of answers. */
#include "reference.h"
#include <arpa/inet.h>
#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static bool find_program(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    char folders[2048], *at = folders, *next;
    int bytes;

    snprintf(folders, sizeof(folders), "%s:/usr/sbin:/usr/local/sbin",
             path ? path : "");
    for (; at; at = next) {
        next = strchr(at, ':');
        if (next)
            *next++ = '\0';
        bytes = snprintf(out, size, "%s/%s", at, name);
        if (at[0] == '/' && bytes > 0 && (size_t)bytes < size &&
            access(out, X_OK) == 0)
            return true;
    }
    return false;
}

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint16_t port = 0;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 &&
        bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void write_nginx(FILE *to, const char *directory, uint16_t port,
                        uint16_t worker)
{
    fprintf(to,
            "daemon off; master_process off; worker_processes 1;\n"
            "pid \"%s/nginx.pid\"; error_log stderr error;\n"
            "events { worker_connections 4096; }\n"
            "http {\n"
            "  access_log off; client_max_body_size 64m;\n"
            "  client_body_buffer_size 256k; keepalive_requests 100000000;\n"
            "  client_body_temp_path \"%s/b\"; proxy_temp_path \"%s/p\";\n"
            "  fastcgi_temp_path \"%s/f\"; uwsgi_temp_path \"%s/u\";\n"
            "  scgi_temp_path \"%s/s\";\n"
            "  upstream w { server 127.0.0.1:%u; keepalive 256;\n"
            "    keepalive_requests 100000000; }\n"
            "  server { listen 127.0.0.1:%u; location / {\n"
            "    proxy_pass http://w; proxy_http_version 1.1;\n"
            "    proxy_set_header Connection \"\"; proxy_buffering off; } }\n"
            "}\n",
            directory, directory, directory, directory, directory, directory,
            worker, port);
}

static void write_haproxy(FILE *to, uint16_t port, uint16_t worker)
{
    fprintf(to,
            "global\n  nbthread 1\n  maxconn 4096\n"
            "defaults\n  mode http\n  timeout connect 2s\n"
            "  timeout client 60s\n  timeout server 60s\n"
            "  http-reuse always\n"
            "listen w\n  bind 127.0.0.1:%u\n  server w 127.0.0.1:%u\n",
            port, worker);
}

static bool listens(struct reference *r)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct timespec nap = {0, 10000000};

    address.sin_port = htons(r->port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < 300 && !bt_process_is_gone(&r->process); i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int failed = fd < 0 || connect(fd, (struct sockaddr *)&address,
                                       sizeof(address)) != 0;

        if (fd >= 0)
            close(fd);
        if (!failed)
            return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

enum bt_status reference_start(struct reference *reference,
                               struct ev_loop *loop, const char *directory,
                               uint16_t worker_port, char *error_out,
                               size_t error_size)
{
    char program[512], config[600], log[600], option[] = "-c", alone[] = "-db";
    char haproxy_option[] = "-f", errors[] = "-e", to_stderr[] = "stderr";
    char *nginx[] = {program, option, config, errors, to_stderr, NULL};
    char *haproxy[] = {program, alone, haproxy_option, config, NULL};
    bool is_nginx = find_program("nginx", program, sizeof(program));
    FILE *to;

    memset(reference, 0, sizeof(*reference));
    reference->process.out = -1;
    if (!is_nginx && !find_program("haproxy", program, sizeof(program)))
        return BT_NOT_FOUND;
    reference->name = is_nginx ? "nginx" : "haproxy";
    reference->port = free_port();
    snprintf(config, sizeof(config), "%s/%s.conf", directory, reference->name);
    snprintf(log, sizeof(log), "%s/%s.log", directory, reference->name);
    to = fopen(config, "we");
    if (!to) {
        snprintf(error_out, error_size, "cannot write %s", config);
        return BT_IO;
    }
    if (is_nginx)
        write_nginx(to, directory, reference->port, worker_port);
    else
        write_haproxy(to, reference->port, worker_port);
    fclose(to);
    if (bt_process_spawn(&reference->process, loop, reference->name, log,
                         is_nginx ? nginx : haproxy) != BT_OK) {
        snprintf(error_out, error_size, "cannot start %s", program);
        return BT_IO;
    }
    if (listens(reference))
        return BT_OK;
    bt_process_describe(&reference->process, error_out, error_size);
    reference_stop(reference);
    return BT_TIMEOUT;
}

void reference_stop(struct reference *reference)
{
    bt_process_kill(&reference->process);
}
