/* What libc promises to a program, call by call, on descriptors of every kind.
 *
 * Each sub-command prints what it observed and nothing that varies from run to run (no times, no
 * process ids). The test runs it over plain libc and again with the library: the two texts must be
 * the same. Sub-commands end with status 0; a wait that should have ended runs into `alarm`.
 */
#ifndef CALLS_H
#define CALLS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

/* Old functions and wrong arguments are what is to be tested here. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wunused-result"

/* Prints what failed and ends the program. */
void die(const char *what);
#define MUST(e) ((e) == -1 ? (die(#e), -1) : 0)

/* Prints a result, with the name of the error if it is -1; clears errno. */
void say(const char *what, long result);

/* Two ends of a stream. KIND: "unix" is nothing to the library, "tcp" is a young connection, "warm"
 * one that has moved enough to have earned another lane. */
void pair(const char *kind, int fds[2]);

int errors(void);
int many(const char *kind);
int system_calls(const char *kind);
int io_uring(void);
int numbers(const char *kind);
int reads(long n);

int cancelled(const char *call, const char *kind);
int interrupts(const char *kind);
int times(const char *kind);

int actions(void);
int handlers(void);
int storm(const char *kind);
int jump(const char *kind);

int show(int argc, char **argv);
int exec_list(const char *self, const char *which, int n);
int vfork_closes(const char *kind);
int forks(const char *kind);
int sandbox(const char *kind, int how);
int identity(const char *kind);

#endif
