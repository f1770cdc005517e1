/* kyb-init: process 1 of a managed container. Its protocol: docs/reference/node/kyb-init.md. */
#ifndef KYB_INIT_H
#define KYB_INIT_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdnoreturn.h>
#include <sys/types.h>
#include <sys/un.h>

#define KYB_PROTOCOL "1"
#define KYB_FRAME_LIMIT (1u << 20) /* bytes of payload in one frame */

enum exit_code { EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

/* Bytes received and not yet understood. Frames are handed out in place. */
struct inbox {
	size_t filled;
	size_t taken; /* length of the frame handed out last, header included */
	char covered; /* the byte behind that frame, where its terminating NUL stands */
	char bytes[4 + KYB_FRAME_LIMIT + 1];
};

/* One frame's payload: fields separated by NUL, the last one NUL-terminated by inbox_next(). */
struct frame {
	char *start;
	char *end;
};

/* wire.c: frames on a stream, and the two sockets. */
const char *seat_socket_path(void);
const char *pod_socket_path(void);
bool wire_local(const char *socket); /* both sockets lie there, in no container; false: too long */
bool wire_address(struct sockaddr_un *address, const char *path); /* false: the path is too long */
int wire_connect(const char *path);                     /* a connected non-blocking socket, or -1 */
bool wire_send(int fd, size_t count, const char *const *fields); /* false: the stream is unusable */
bool wire_write(int fd, const struct frame *frame);     /* relays a frame; blocks on a blocking fd */
ssize_t inbox_fill(struct inbox *inbox, int fd);        /* read(2)'s result */
int inbox_next(struct inbox *inbox, struct frame *out); /* 1 a frame, 0 need more, -1 too long */
char *frame_field(struct frame *frame);                 /* the next field, or NULL after the last */

/* init.c, tree.c, ask.c: the three lives of the program. */
noreturn void init_run(bool image, char **args);
noreturn void init_run_local(char **args); /* on a box, once wire_local() was called */
noreturn void init_run_parked(pid_t tree); /* the number that the tree's root will have here */
noreturn void tree_run(int gate, char **args, const sigset_t *mask, bool local);
int ask_status(void);
int ask_probe(long long liveness_ms, char **command); /* -1: not the liveness probe */
pid_t tree_number(const char *text); /* of a tree's root, or -1 if it can be none's */
long long now_ms(void);                               /* of a clock that never jumps */
void agent_tell(size_t count, const char *const *fields); /* lost while the agent is away */

/* pod.c: the pod's socket, served by process 1. */
enum { POD_FDS = 5 };
void pod_open(void);  /* idempotent */
void pod_close(void); /* until the next pod_open() */
size_t pod_fds(struct pollfd *ready); /* fills POD_FDS of them */
void pod_handle(const struct pollfd *ready);
void pod_state(const char *state, const char *sentence); /* the agent's word; either may be NULL */
void pod_started(pid_t tree);
long long pod_next_check(void); /* when pod_check() is due, by now_ms(); -1: never */
void pod_check(void);
void pod_ask(const char *phase, const char *limit);
void pod_greet(void); /* an agent that is new here */
void pod_hints_heard(void); /* this agent knows what hints of turns are */

/* Prints "kyb-init: ..." on standard error. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* execvp(); on failure says why and returns 126 or 127. */
int run_command(char **argv);
/* A status of waitpid() as a shell reports it: the code, or 128 + the signal. */
int exit_code_of(int status);

#endif
