/*
 * Relatives that use one connection one after the other, each killed in the middle of its calls.
 *
 * relatives MODE SEED GENERATIONS; prints one line of JSON.
 *
 * A generation goes on with the connection where the one before was killed, forks its heir, and is killed
 * itself: under ptrace after so many instructions of a call (mode `step`; `shared`, where the heir already
 * has an heir of its own when it begins), or after some microseconds (mode `time`). The last one ends the
 * connection in order.
 *
 * What a generation sends says who sent it and the how manieth byte of its it is, so that the peer, no
 * relative, sees whether what calls sent before the last is there once and in order, and of that a
 * beginning. What the peer sends is a known stream: an heir must find its place in it, not before what
 * calls have returned and not behind what the last call had asked for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum {
	GENERATIONS_MAX = 2000,
	TABLE = 65537,
	MOST = 65536,
	WARM_UP = 40,
	CALLS = 9,
	STEPS_SPAN = 1500, /* instructions of most of the calls, and some more */
};

static struct shared {
	volatile uint64_t sent[GENERATIONS_MAX];    /* by calls that returned */
	volatile uint64_t sending[GENERATIONS_MAX]; /* by the call that did not */
	volatile uint64_t arrived[GENERATIONS_MAX];
	volatile uint64_t got;  /* of the peer's stream, by calls that returned */
	volatile uint64_t asked; /* by the one that did not */
	volatile uint64_t said; /* by the peer, in all */
	volatile int stop;
	volatile int failed;
	char why[200];
} *all;

static unsigned char table[TABLE], from[MOST], to[MOST];
static int generations, shared, ready[2], turn[2], port[2];
static unsigned seed;

static void fail(int g, const char *what, long a, long b)
{
	if (!__sync_lock_test_and_set(&all->failed, 1))
		snprintf(all->why, sizeof all->why, "%d: %s %ld %ld", g, what, a, b);
}

/* There is no next generation. */
static void __attribute__((noreturn)) give_up(void)
{
	pid_t none = 0;
	_exit(write(ready[1], &none, sizeof none) < 0);
}

static unsigned chance(unsigned n)
{
	seed = seed * 1103515245u + 12345u;
	return (seed >> 8) % n;
}

static unsigned char told(int g, uint64_t i)
{
	return (unsigned char)((g & 3) << 6 | i % 61);
}

/* ---- the peer ---- */

static void *peer_says(void *arg)
{
	int sock = *(int *)arg;
	unsigned own = 7;
	while (!all->stop) {
		own = own * 1103515245u + 12345u;
		size_t at = all->said % TABLE, n = 1 + (own >> 8) % ((own >> 4) % 3 ? 200 : 20000);
		if (n > TABLE - at)
			n = TABLE - at;
		ssize_t done = send(sock, table + at, n, MSG_NOSIGNAL);
		if (done <= 0) {
			if (!all->stop)
				fail(-1, "peer: send", errno, 0);
			return NULL;
		}
		all->said += done;
	}
	shutdown(sock, SHUT_WR);
	return NULL;
}

static void peer_hears(int sock)
{
	static unsigned char bytes[MOST];
	int g = 0;
	uint64_t n = 0;
	for (;;) {
		ssize_t got = recv(sock, bytes, sizeof bytes, 0);
		if (got <= 0) {
			if (got < 0)
				fail(-1, "peer: recv", errno, g);
			return;
		}
		for (ssize_t i = 0; i < got; i++) {
			if (bytes[i] != told(g, n) && bytes[i] == told(g + 1, 0) && g + 1 < generations) {
				g++;
				n = 0;
			}
			if (bytes[i] != told(g, n)) {
				fail(g, "peer: wrong byte", n, bytes[i]);
				return;
			}
			all->arrived[g] = ++n;
		}
	}
}

static void warm_up(int sock, int first)
{
	char bytes[32];
	memset(bytes, 5, sizeof bytes);
	for (int i = 0; i < WARM_UP; i++) {
		if (first && send(sock, bytes, 32, 0) != 32)
			fail(-1, "warm-up: send", errno, i);
		if (recv(sock, bytes, 32, MSG_WAITALL) != 32)
			fail(-1, "warm-up: recv", errno, i);
		if (!first && send(sock, bytes, 32, 0) != 32)
			fail(-1, "warm-up: send", errno, i);
	}
}

static void peer(void)
{
	close(turn[1]);
	close(ready[1]);
	struct sockaddr_in to_whom = {.sin_family = AF_INET};
	to_whom.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (read(port[0], &to_whom.sin_port, 2) != 2)
		_exit(1);
	int sock = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(sock, (struct sockaddr *)&to_whom, sizeof to_whom))
		_exit(2);
	warm_up(sock, 1);
	pthread_t thread;
	pthread_create(&thread, NULL, peer_says, &sock);
	peer_hears(sock);
	all->stop = 1;
	shutdown(sock, SHUT_RDWR);
	pthread_join(thread, NULL);
	_exit(0);
}

/* ---- the relatives ---- */

static void say(int sock, int g, size_t n, int gather)
{
	for (size_t i = 0; i < n; i++)
		from[i] = told(g, all->sent[g] + i);
	struct iovec parts[2] = {{from, n / 2}, {from + n / 2, n - n / 2}};
	all->sending[g] = n;
	ssize_t done = gather ? writev(sock, parts, 2) : send(sock, from, n, MSG_NOSIGNAL);
	if (done <= 0) {
		fail(g, "send", errno, n);
		give_up();
	}
	/* Killed between these two: the peer may have more than the sum of both, once. */
	all->sent[g] += done;
	all->sending[g] = 0;
}

static int is_at(uint64_t position, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (to[i] != table[(position + i) % TABLE])
			return 0;
	return 1;
}

static ssize_t hear(int sock, int g, size_t n, int flags, int scatter)
{
	struct iovec parts[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
	if (!(flags & MSG_PEEK))
		all->asked = n;
	ssize_t got = scatter ? readv(sock, parts, 2) : recv(sock, to, n, flags);
	if (got < 0) {
		fail(g, "recv", errno, n);
		give_up();
	}
	if (got && !is_at(all->got, got)) {
		fail(g, "wrong byte behind", all->got, got);
		give_up();
	}
	if (!(flags & MSG_PEEK)) {
		all->got += got;
		all->asked = 0;
	}
	return got;
}

/* The first receive after a death: finds its place. */
static void find(int sock, int g)
{
	uint64_t least = all->got, most = least + all->asked;
	ssize_t n = recv(sock, to, 64, MSG_WAITALL);
	if (n != 64) {
		fail(g, "first recv", n, errno);
		give_up();
	}
	for (uint64_t at = least; at <= most; at++)
		if (is_at(at, n)) {
			all->got = at + n;
			all->asked = 0;
			return;
		}
	fail(g, "no place", least, most);
	give_up();
}

static void one_call(int sock, int g, unsigned which)
{
	switch (which) {
	case 0: say(sock, g, 1 + chance(300), 0); break;
	case 1: hear(sock, g, 1 + chance(300), 0, 0); break;
	case 2: say(sock, g, 1 + chance(16384), 0); break;
	case 3: hear(sock, g, 1 + chance(16384), 0, 0); break;
	case 4: say(sock, g, 2 + chance(300), 1); break;
	case 5: hear(sock, g, 2 + chance(300), 0, 1); break;
	case 6: say(sock, g, 20000 + chance(40000), 0); break;
	case 7: hear(sock, g, 5000 + chance(20000), MSG_WAITALL, 0); break;
	default: hear(sock, g, 1 + chance(300), MSG_PEEK, 0); break;
	}
}

/* True in the heir, who is the next generation. */
static int generation(int sock, int g)
{
	seed += g * 7919u;
	if (g > 0) {
		char go;
		if (read(turn[0], &go, 1) != 1)
			_exit(0);
	}
	if (g == 0) {
		say(sock, g, 1, 0);
	} else if (!shared) {
		/* Alone with the connection. Which half is repaired first? */
		int says_first = chance(2);
		if (says_first)
			say(sock, g, 1 + chance(200), 0);
		find(sock, g);
		if (!says_first)
			say(sock, g, 1 + chance(200), 0);
	}
	if (g + 1 < generations && fork() == 0)
		return 1;
	if (g > 0 && shared) {
		say(sock, g, 1 + chance(200), 0);
		find(sock, g);
	}
	for (unsigned i = chance(4); i; i--)
		one_call(sock, g, chance(CALLS));
	if (g + 1 < generations) {
		/* What is stepped through is the call behind the stop. */
		unsigned which = g % CALLS;
		pid_t self = getpid();
		if (ptrace(PTRACE_TRACEME, 0, 0, 0)) {
			fail(g, "ptrace", errno, 0);
			give_up();
		}
		if (write(ready[1], &self, sizeof self) != sizeof self)
			_exit(0);
		raise(SIGSTOP);
		for (;;)
			one_call(sock, g, (which++) % CALLS);
	}
	all->stop = 1;
	while (hear(sock, g, MOST, 0, 0) > 0)
		;
	if (all->got != all->said)
		fail(g, "end of stream at", all->got, all->said);
	shutdown(sock, SHUT_WR);
	while (recv(sock, to, 1, 0) > 0)
		;
	give_up();
}

static void first(void)
{
	int lst = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t len = sizeof at;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(lst, (struct sockaddr *)&at, sizeof at) || listen(lst, 1) ||
	    getsockname(lst, (struct sockaddr *)&at, &len) || write(port[1], &at.sin_port, 2) != 2)
		_exit(1);
	int sock = accept(lst, NULL, NULL);
	close(lst);
	warm_up(sock, 0);
	close(turn[1]);
	for (int g = 0; generation(sock, g); g++)
		;
}

/* ---- who kills ---- */

static void step(pid_t pid, unsigned steps)
{
	int status;
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) {
		fail(-1, "not stopped", pid, status);
		return;
	}
	for (unsigned i = 0; i < steps; i++) {
		int sig = WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP
			? WSTOPSIG(status) : 0;
		if (ptrace(PTRACE_SINGLESTEP, pid, 0, sig) || waitpid(pid, &status, 0) != pid ||
		    !WIFSTOPPED(status))
			break;
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
}

static void wait_and_kill(pid_t pid, unsigned us)
{
	int status;
	waitpid(pid, &status, 0);
	ptrace(PTRACE_DETACH, pid, 0, 0);
	usleep(us);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int by_time = !strcmp(argv[1], "time");
	shared = !strcmp(argv[1], "shared");
	seed = strtoul(argv[2], NULL, 10) * 2654435761u + 1;
	generations = atoi(argv[3]);
	if (generations < 2 || generations > GENERATIONS_MAX)
		return 2;
	all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < TABLE; i++)
		table[i] = chance(256);
	/* Orphans are ours: to be waited for, and traced where only descendants may be. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (pipe(ready) || pipe(turn) || pipe(port))
		return 2;
	signal(SIGPIPE, SIG_IGN);
	pid_t other = fork();
	if (other == 0)
		peer();
	if (fork() == 0)
		first();
	close(ready[1]);
	int killed = 0;
	unsigned offset = chance(STEPS_SPAN);
	for (;;) {
		pid_t pid;
		if (read(ready[0], &pid, sizeof pid) != sizeof pid || pid == 0)
			break;
		if (by_time)
			wait_and_kill(pid, chance(400));
		else
			/* Another part of the call each time. */
			step(pid, (offset + killed * 131u) % STEPS_SPAN);
		killed++;
		if (write(turn[1], "g", 1) != 1)
			break;
	}
	int status = 0;
	if (all->failed)
		kill(other, SIGKILL);
	waitpid(other, &status, 0);
	uint64_t bytes = 0;
	for (int g = 0; g < generations && !all->failed; g++) {
		if (all->arrived[g] < all->sent[g] || all->arrived[g] > all->sent[g] + all->sending[g])
			fail(g, "arrived, sent", all->arrived[g], all->sent[g]);
		bytes += all->arrived[g];
	}
	printf("{\"killed\": %d, \"failed\": \"%s\", \"bytes\": %lu, \"got\": %lu}\n", killed, all->why,
	       (unsigned long)bytes, (unsigned long)all->got);
	return 0;
}
