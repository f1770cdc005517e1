/* Short questions from inside the container: status, and probes of a process that may be parked. */
#define _GNU_SOURCE
#include "kyb-init.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_LIMIT_MS = 2000 };

static struct inbox inbox;

static bool await_frame(int fd, struct frame *answer)
{
	struct pollfd waiting = {.fd = fd, .events = POLLIN};
	long long until = now_ms() + ANSWER_LIMIT_MS;

	for (;;) {
		int left = (int)(until - now_ms());
		int known = inbox_next(&inbox, answer);

		if (known)
			return known > 0;
		if (left <= 0 || (poll(&waiting, 1, left) < 0 && errno != EINTR))
			return false;
		if (waiting.revents && inbox_fill(&inbox, fd) <= 0)
			return false;
	}
}

/* The verb of the answer, its other fields in `rest`; NULL without an answer. */
static const char *ask(const char *path, const char *verb, struct frame *rest)
{
	int fd = wire_connect(path);
	const char *answer = NULL;

	if (fd < 0)
		return NULL;
	memset(&inbox, 0, offsetof(struct inbox, bytes));
	if (wire_send(fd, 1, &verb) && await_frame(fd, rest))
		answer = frame_field(rest);
	close(fd);
	return answer;
}

/* What process 1 knows while the agent is away; false if it knows nothing either. */
static bool status_by_process_1(void)
{
	struct frame rest;
	const char *verb = ask(pod_socket_path(), "look", &rest);
	const char *state = verb && strcmp(verb, "state") == 0 ? frame_field(&rest) : NULL;
	const char *sentence = NULL;
	char name[32] = "";
	FILE *comm;

	if (state && frame_field(&rest) && frame_field(&rest))
		sentence = frame_field(&rest);
	if (!state) {
		comm = fopen("/proc/1/comm", "re");
		if (comm && fscanf(comm, "%31s", name) == 1 && strcmp(name, "kyb-parked") == 0) {
			state = "parked";
			sentence = "the tree was dumped and ended";
		}
		if (comm)
			fclose(comm);
	}
	if (!state)
		return false;
	printf("%s: %s%s(the node agent is away)\n", state, sentence ? sentence : "",
	       sentence && *sentence ? " " : "");
	return true;
}

int ask_status(void)
{
	struct frame rest;
	const char *verb = ask(seat_socket_path(), "status", &rest);
	const char *state, *sentence;

	if (!verb || strcmp(verb, "status") != 0) {
		if (status_by_process_1())
			return 0;
		complain("the node agent does not answer on the seat's socket");
		return EXIT_REFUSED;
	}
	state = frame_field(&rest);
	sentence = frame_field(&rest);
	printf("%s: %s\n", state ? state : "unknown", sentence ? sentence : "");
	return 0;
}

/* --- probes ----------------------------------------------------------------------------------- */

static bool is_one_of(const char *word, const char *const *words)
{
	for (; *words; words++)
		if (strcmp(word, *words) == 0)
			return true;
	return false;
}

static void tell_that_it_serves(void)
{
	const char *verb = "serves";
	int fd = wire_connect(pod_socket_path());

	if (fd < 0)
		return;
	wire_send(fd, 1, &verb);
	close(fd);
}

/* Runs the probe's command and waits for it; it dies with this process. */
static int run_and_wait(char **command)
{
	int status;
	pid_t child = fork();

	if (child < 0) {
		complain("cannot fork: %s", strerror(errno));
		return EXIT_CANNOT_RUN;
	}
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(run_command(command));
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return EXIT_CANNOT_RUN;
	return exit_code_of(status);
}

/* A command that waited at the gate was let go later than the kubelet thinks: until its start-up
 * time is over, counted from then, or a probe has succeeded, a liveness probe may not kill it. */
static int probe_new_command(const char *age, long long liveness_ms, char **command)
{
	int code = run_and_wait(command);

	if (code == 0)
		tell_that_it_serves();
	else if (strtoll(age, NULL, 10) < liveness_ms)
		return 0;
	return code;
}

/* Process 1 knows the seat's state also while the agent is away. -1: it could not be asked. */
static int probe_by_state(long long liveness_ms, char **command)
{
	static const char *const asked[] = {"running", "starting", "active", "draining", NULL};
	static const char *const over[] = {"failed", "gone", NULL};
	struct frame rest;
	const char *verb = ask(pod_socket_path(), "look", &rest);
	const char *state, *age, *serves;

	if (!verb || strcmp(verb, "state") != 0)
		return -1;
	state = frame_field(&rest);
	age = frame_field(&rest);
	serves = frame_field(&rest);
	if (!state || !age || !serves)
		return -1;
	if (is_one_of(state, over))
		return 1;
	if (!is_one_of(state, asked))
		return 0;
	return *serves == '1' ? run_command(command) : probe_new_command(age, liveness_ms, command);
}

int ask_probe(long long liveness_ms, char **command)
{
	struct frame rest;
	int code = probe_by_state(liveness_ms, command);
	const char *verb;

	if (code >= 0)
		return code;
	verb = ask(seat_socket_path(), "probe", &rest);
	if (verb && strcmp(verb, "run") == 0)
		return run_command(command);
	if (verb && strcmp(verb, "dead") == 0)
		return 1;
	/* An agent that is away must not get a parked container killed: its state would be lost. */
	return 0;
}
