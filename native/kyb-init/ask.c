/* Short questions to the agent from inside the container: status, and probes of a process that may
 * be parked. */
#define _GNU_SOURCE
#include "kyb-init.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_LIMIT_MS = 2000 };

static struct inbox inbox;

static int milliseconds_since(const struct timespec *then)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int)((now.tv_sec - then->tv_sec) * 1000 + (now.tv_nsec - then->tv_nsec) / 1000000);
}

static bool await_frame(int fd, struct frame *answer)
{
	struct timespec start;
	struct pollfd waiting = {.fd = fd, .events = POLLIN};

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (;;) {
		int left = ANSWER_LIMIT_MS - milliseconds_since(&start);
		int known = inbox_next(&inbox, answer);

		if (known)
			return known > 0;
		if (left <= 0 || (poll(&waiting, 1, left) < 0 && errno != EINTR))
			return false;
		if (waiting.revents && inbox_fill(&inbox, fd) <= 0)
			return false;
	}
}

/* The verb of the agent's answer, its other fields in `rest`; NULL without an answer. */
static const char *ask(const char *verb, struct frame *rest)
{
	int fd = wire_connect();
	const char *answer = NULL;

	if (fd < 0)
		return NULL;
	if (wire_send(fd, 1, &verb) && await_frame(fd, rest))
		answer = frame_field(rest);
	close(fd);
	return answer;
}

int ask_status(void)
{
	struct frame rest;
	const char *verb = ask("status", &rest);
	const char *state, *sentence;

	if (!verb || strcmp(verb, "status") != 0) {
		complain("the node agent does not answer on the seat's socket");
		return EXIT_REFUSED;
	}
	state = frame_field(&rest);
	sentence = frame_field(&rest);
	printf("%s: %s\n", state ? state : "unknown", sentence ? sentence : "");
	return 0;
}

int ask_probe(char **command)
{
	struct frame rest;
	const char *verb = ask("probe", &rest);

	if (verb && strcmp(verb, "run") == 0)
		return run_command(command);
	if (verb && strcmp(verb, "dead") == 0)
		return 1;
	/* An agent that is away must not get a parked container killed: its state would be lost. */
	return 0;
}
