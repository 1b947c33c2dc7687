/*
 * Loaded before the C library into the agent of a test: numbers every call with which the agent changes something outside of itself, and ends the
 * process with SIGKILL instead of making the call with a given number. What it changes: the kernel (requests of rtnetlink, settings below
 * /proc/sys/net), the database and the flow tables of Open vSwitch, nftables, and the journal.
 *
 * VNF_TEST_KILL_IN   what to look at: "agent", or "stand-by" for the process that stands by for it
 * VNF_TEST_KILL_AT   number of the call, from 1; 0 to number only
 * VNF_TEST_KILL_LOG  file that gets a line for each numbered call
 * VNF_TEST_KILL_BY   number of another signal in the place of SIGKILL; after SIGSTOP and SIGCONT the call is made all the same
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int watched;
static long last;
static int by = SIGKILL;
static int log_file = -1;
static atomic_long number;

__attribute__((constructor)) static void begin(void)
{
    const char *in = getenv("VNF_TEST_KILL_IN"), *at = getenv("VNF_TEST_KILL_AT"), *log = getenv("VNF_TEST_KILL_LOG");
    char program[4096] = "", arguments[4096] = "";
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    ssize_t told = file < 0 ? 0 : read(file, arguments, sizeof arguments - 1);
    const char *name = length > 0 ? strrchr(program, '/') : NULL;
    close(file);
    if (!in || !at || !log || told <= 0 || !name || strcmp(name, "/vnf-agent") != 0)
        return;
    const char *first = arguments + strlen(arguments) + 1;
    int stands_by = first < arguments + told && strcmp(first, "--stand-by-for-nic") == 0;
    if (stands_by != (strcmp(in, "stand-by") == 0))
        return;
    log_file = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    last = atol(at);
    if (getenv("VNF_TEST_KILL_BY"))
        by = atoi(getenv("VNF_TEST_KILL_BY"));
    watched = 1;
}

static void numbered(const char *what, const char *detail)
{
    char line[600];
    long now = atomic_fetch_add(&number, 1) + 1;
    int length = snprintf(line, sizeof line, "%ld %s %.500s\n", now, what, detail);
    syscall(SYS_write, log_file, line, length);
    if (now == last)
        kill(getpid(), by);
}

static int is_journal(const char *path)
{
    const char *end = strrchr(path, '.');
    return strstr(path, "/nic/") && end && (strcmp(end, ".new") == 0 || strcmp(end, ".json") == 0 || strcmp(end, ".damaged") == 0);
}

static void path_of(int fd, char *path, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    path[length > 0 ? length : 0] = 0;
}

static void rtnetlink(const char *bytes, size_t size)
{
    static const char *verbs[] = {"new", "del", "get", "set"};
    while (size >= sizeof(struct nlmsghdr)) {
        struct nlmsghdr head;
        char what[32];
        memcpy(&head, bytes, sizeof head);
        if (head.nlmsg_len < sizeof head || head.nlmsg_len > size)
            return;
        /* The numbers of namespaces (88) are the monitor's own. */
        if (head.nlmsg_type >= 16 && head.nlmsg_type % 4 != 2 && head.nlmsg_type != 88) {
            snprintf(what, sizeof what, "%s %d", verbs[head.nlmsg_type % 4], head.nlmsg_type);
            numbered("rtnetlink", what);
            return;
        }
        size_t step = NLMSG_ALIGN(head.nlmsg_len);
        if (step >= size)
            return;
        bytes += step;
        size -= step;
    }
}

/* Changes come in batches (NFNL_MSG_BATCH_BEGIN), questions do not. */
static int is_batch(const char *bytes, size_t size)
{
    struct nlmsghdr head;
    if (size < sizeof head)
        return 0;
    memcpy(&head, bytes, sizeof head);
    return head.nlmsg_type == 0x10;
}

/* Whether it is worth a number is decided by what is written, and to where. */
static void look(int fd, const char *bytes, size_t size)
{
    int domain = 0, protocol = 0;
    socklen_t length = sizeof domain;
    if (!watched || size == 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0) {
        length = sizeof protocol;
        getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length);
        if (domain == AF_NETLINK && protocol == NETLINK_ROUTE)
            rtnetlink(bytes, size);
        else if (domain == AF_NETLINK && protocol == NETLINK_NETFILTER && is_batch(bytes, size))
            numbered("nftables", "batch");
        else if (domain == AF_UNIX && memmem(bytes, size, "\"transact\"", 10) && (memmem(bytes, size, "\"insert\"", 8) || memmem(bytes, size, "\"delete\"", 8)))
            numbered("ovsdb", "transact");
        return;
    }
    char path[4096];
    path_of(fd, path, sizeof path);
    if (strncmp(path, "/proc/sys/net/", 14) == 0 || is_journal(path))
        numbered("write", path);
    else if (size > 13 && memcmp(bytes, "delete cookie", 13) == 0)
        numbered("program", "ovs-ofctl");
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *bytes, size_t size)
{
    look(fd, bytes, size);
    return REAL(write)(fd, bytes, size);
}

ssize_t send(int fd, const void *bytes, size_t size, int flags)
{
    look(fd, bytes, size);
    return REAL(send)(fd, bytes, size, flags);
}

ssize_t sendto(int fd, const void *bytes, size_t size, int flags, const struct sockaddr *to, socklen_t length)
{
    look(fd, bytes, size);
    return REAL(sendto)(fd, bytes, size, flags, to, length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (message->msg_iovlen > 0)
        look(fd, message->msg_iov[0].iov_base, message->msg_iov[0].iov_len);
    return REAL(sendmsg)(fd, message, flags);
}

int fsync(int fd)
{
    char path[4096];
    if (watched) {
        path_of(fd, path, sizeof path);
        size_t length = strlen(path);
        if (is_journal(path) || (length > 4 && strcmp(path + length - 4, "/nic") == 0))
            numbered("fsync", path);
    }
    return REAL(fsync)(fd);
}

int rename(const char *from, const char *to)
{
    if (watched && is_journal(to))
        numbered("rename", to);
    return REAL(rename)(from, to);
}

int unlink(const char *path)
{
    if (watched && is_journal(path))
        numbered("unlink", path);
    return REAL(unlink)(path);
}
