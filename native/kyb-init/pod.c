/* The pod's socket: what the sidecar and exec probes ask process 1, whose tree may be parked. It
 * knows the seat's state as the agent told it last, so that nobody has to ask the agent. */
#define _GNU_SOURCE
#include "kyb-init.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CALLERS = POD_FDS - 1, CALLER_FRAME_LIMIT = 256, SENTENCE_LIMIT = 192, CHECK_MS = 2000 };

struct caller {
	int fd; /* -1: free */
	bool watches;
	char mode[16]; /* how it can make the workload cooperate, "none" if it can't */
	struct inbox inbox;
};

static struct caller callers[CALLERS];
static int listener = -1;
static bool opened;
static char state[24] = "waiting";
static char sentence[SENTENCE_LIMIT];
static long long started_at = -1; /* when the command was let go; -1 before */
static pid_t tree;
static long long check_at;        /* when a parked command is looked at next */
static bool serves;               /* whether a probe of the command has succeeded since */
static char told_mode[16] = "none";
static bool acquired;             /* the last hint of this run was "acquire" */
static bool hints_heard;          /* whether the agent of this connection knows what hints are */

void pod_open(void)
{
	struct sockaddr_un address;

	if (opened)
		return;
	opened = true;
	for (size_t i = 0; i < CALLERS; i++)
		callers[i].fd = -1;
	if (!wire_address(&address, pod_socket_path()))
		return;
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	unlink(address.sun_path); /* left by the container's last run */
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0) {
		/* Pods of other releases have no such folder: then there is nobody to ask either. */
		if (errno != ENOENT)
			complain("probes can't ask: %s: %s", address.sun_path, strerror(errno));
		close(listener);
		listener = -1;
		return;
	}
	chmod(address.sun_path, 0666); /* the sidecar runs as another user */
	listen(listener, CALLERS);
}

size_t pod_fds(struct pollfd *ready)
{
	ready[0] = (struct pollfd){.fd = listener, .events = POLLIN};
	for (size_t i = 0; i < CALLERS; i++)
		ready[i + 1] = (struct pollfd){.fd = callers[i].fd, .events = POLLIN};
	return POD_FDS;
}

/* --- the mode in which the workload cooperates, as the agent knows it -------------------------- */

static struct caller *cooperating(void)
{
	for (size_t i = 0; i < CALLERS; i++)
		if (callers[i].fd >= 0 && callers[i].watches && strcmp(callers[i].mode, "none") != 0)
			return &callers[i];
	return NULL;
}

void pod_greet(void)
{
	const struct caller *found = cooperating();
	const char *mode = found ? found->mode : "none";

	hints_heard = false;
	strcpy(told_mode, mode);
	if (found)
		agent_tell(2, (const char *const[]){"cooperates", mode});
}

static void mode_may_have_changed(void)
{
	const struct caller *found = cooperating();
	const char *mode = found ? found->mode : "none";

	if (strcmp(mode, told_mode) == 0)
		return;
	strcpy(told_mode, mode);
	agent_tell(2, (const char *const[]){"cooperates", mode});
}

/* --- hints of turns ------------------------------------------------------------------------- */

static void hint(const char *what)
{
	acquired = strcmp(what, "acquire") == 0;
	if (hints_heard)
		agent_tell(2, (const char *const[]){"turn", what});
}

/* What it was told while it was away holds; "yield" was about a turn that may be over by now. */
void pod_hints_heard(void)
{
	hints_heard = true;
	if (acquired)
		agent_tell(2, (const char *const[]){"turn", "acquire"});
}

/* --- callers ---------------------------------------------------------------------------------- */

static void drop(struct caller *caller)
{
	close(caller->fd);
	caller->fd = -1;
	caller->watches = false;
	mode_may_have_changed();
}

void pod_close(void)
{
	struct sockaddr_un address;

	/* First: a sidecar that is dropped and finds no socket knows that process 1 has not died. */
	if (listener >= 0 && wire_address(&address, pod_socket_path()))
		unlink(address.sun_path);
	for (size_t i = 0; i < CALLERS; i++)
		if (callers[i].fd >= 0)
			drop(&callers[i]);
	if (listener >= 0)
		close(listener);
	listener = -1;
	opened = false;
}

static void say(struct caller *caller, size_t count, const char *const *fields)
{
	if (!wire_send(caller->fd, count, fields))
		drop(caller);
}

static void say_state(struct caller *caller)
{
	char age[24] = "-";

	if (started_at >= 0)
		snprintf(age, sizeof(age), "%lld", now_ms() - started_at);
	say(caller, 5, (const char *const[]){"state", state, age, serves ? "1" : "0", sentence});
}

static void tell_watchers(void)
{
	for (size_t i = 0; i < CALLERS; i++)
		if (callers[i].fd >= 0 && callers[i].watches)
			say_state(&callers[i]);
}

static void on_watch(struct caller *caller, const char *version, const char *mode)
{
	if (!version || strcmp(version, KYB_PROTOCOL) != 0 || !mode ||
	    strlen(mode) >= sizeof(caller->mode)) {
		say(caller, 2, (const char *const[]){"refuse", "watch " KYB_PROTOCOL " MODE is expected"});
		drop(caller);
		return;
	}
	strcpy(caller->mode, mode);
	caller->watches = true;
	mode_may_have_changed();
	say_state(caller);
}

static void on_caller_frame(struct caller *caller, struct frame frame)
{
	const char *verb = frame_field(&frame);
	const char *first = frame_field(&frame);
	const char *second = frame_field(&frame);
	const char *third = frame_field(&frame);

	if (strcmp(verb, "look") == 0) {
		say_state(caller);
	} else if (strcmp(verb, "watch") == 0) {
		on_watch(caller, first, second);
	} else if (strcmp(verb, "serves") == 0) {
		if (!serves) {
			serves = true;
			tell_watchers();
		}
	} else if (strcmp(verb, "progress") == 0 && first) {
		agent_tell(2, (const char *const[]){"progress", first});
	} else if (strcmp(verb, "turn") == 0 && first) {
		hint(first);
	} else if (strcmp(verb, "cooperated") == 0 && first && second && third) {
		agent_tell(4, (const char *const[]){"cooperated", first, second, third});
	} else {
		drop(caller);
	}
}

static void on_caller_readable(struct caller *caller)
{
	struct frame frame;
	ssize_t got = inbox_fill(&caller->inbox, caller->fd);
	int known = 0;

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		drop(caller);
		return;
	}
	while (caller->fd >= 0 && (known = inbox_next(&caller->inbox, &frame)) == 1) {
		if (frame.end - frame.start > CALLER_FRAME_LIMIT)
			drop(caller);
		else
			on_caller_frame(caller, frame);
	}
	if (caller->fd >= 0 && (known < 0 || caller->inbox.filled > CALLER_FRAME_LIMIT + 4))
		drop(caller);
}

static void accept_caller(void)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	for (size_t i = 0; i < CALLERS; i++) {
		if (callers[i].fd >= 0)
			continue;
		callers[i].fd = fd;
		callers[i].watches = false;
		memset(&callers[i].inbox, 0, offsetof(struct inbox, bytes));
		return;
	}
	close(fd); /* whoever holds all the places is in this pod, and spoils only its own probes */
}

void pod_handle(const struct pollfd *ready)
{
	/* Callers before the listener: a place given to a new one must not answer for the old. */
	for (size_t i = 0; i < CALLERS; i++)
		if (ready[i + 1].revents && callers[i].fd >= 0 && callers[i].fd == ready[i + 1].fd)
			on_caller_readable(&callers[i]);
	if (ready[0].revents)
		accept_caller();
}

/* --- what process 1 learns -------------------------------------------------------------------- */

void pod_state(const char *new_state, const char *new_sentence)
{
	if (!new_state || strlen(new_state) >= sizeof(state))
		return;
	strcpy(state, new_state);
	snprintf(sentence, sizeof(sentence), "%s", new_sentence ? new_sentence : "");
	tell_watchers();
}

void pod_started(pid_t started)
{
	tree = started;
	started_at = now_ms();
	serves = false;
	acquired = false;
	if (strcmp(state, "waiting") == 0)
		pod_state("running", "");
}

/* Its state stands behind its name, in which it may have put any character. */
static bool is_zombie(int pid)
{
	char path[64], line[256] = "";
	const char *end = NULL;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	stat = fopen(path, "re");
	if (!stat)
		return false;
	if (fgets(line, sizeof(line), stat))
		end = strrchr(line, ')');
	fclose(stat);
	return end && strncmp(end, ") Z", 3) == 0;
}

/* Whether the command has ended below a frozen kyb-tree, which can't report it: nothing but zombies
 * is left there. What can't be read counts as there. */
static bool command_has_gone(void)
{
	char path[64];
	FILE *children;
	int pid, dead = 0, live = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)tree, (int)tree);
	children = fopen(path, "re");
	if (!children)
		return false;
	while (!live && fscanf(children, "%d", &pid) == 1) {
		if (is_zombie(pid))
			dead++;
		else
			live++;
	}
	fclose(children);
	return dead && !live;
}

long long pod_next_check(void)
{
	return strcmp(state, "parked") == 0 ? check_at : -1;
}

void pod_check(void)
{
	if (pod_next_check() < 0 || now_ms() < check_at)
		return;
	check_at = now_ms() + CHECK_MS;
	if (command_has_gone())
		pod_state("failed", "the parked process has gone");
}

void pod_ask(const char *phase, const char *limit)
{
	struct caller *found = cooperating();

	if (!phase || !limit)
		return;
	if (found)
		say(found, 3, (const char *const[]){"cooperate", phase, limit});
	else
		agent_tell(4, (const char *const[]){"cooperated", phase, "failed",
						    "the sidecar is not connected"});
}
