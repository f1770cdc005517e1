/* kyb-tree: the root of everything that is parked together. It waits at the gate, then starts the
 * command, passes signals on, and ends with the command's status. */
#define _GNU_SOURCE
#include "kyb-init.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct inbox inbox;

/* Blocks until process 1 has relayed the agent's grant: go GENERATION [PREFIX...]. */
static struct frame wait_at_gate(int gate)
{
	struct frame grant;

	while (inbox_next(&inbox, &grant) != 1) {
		ssize_t got = inbox_fill(&inbox, gate);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			_exit(EXIT_REFUSED); /* process 1 is gone, and the namespace with it */
	}
	return grant;
}

/* The image's entry point, if the grant brought one, before kyb-init's own arguments. */
static char **join(struct frame prefix, char **args)
{
	struct frame counted = prefix;
	size_t count = 1, at = 0;
	char **argv;

	while (frame_field(&counted))
		count++;
	for (char **arg = args; *arg; arg++)
		count++;
	argv = calloc(count, sizeof(*argv));
	if (!argv) {
		complain("no memory for the command's arguments");
		_exit(EXIT_CANNOT_RUN);
	}
	for (char *word; (word = frame_field(&prefix));)
		argv[at++] = word;
	while (*args)
		argv[at++] = *args++;
	return argv;
}

int run_command(char **argv)
{
	int reason;

	if (!argv[0]) {
		complain("there is nothing to run: neither the pod nor its image names a command");
		return EXIT_NOT_FOUND;
	}
	execvp(argv[0], argv);
	reason = errno;
	complain("cannot run %s: %s", argv[0], strerror(reason));
	return reason == ENOENT || reason == ENOTDIR ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}

/* No namespace ends with process 1 there: what is left of the tree ends with it. Its user may look
 * at it, and park it, as at all of their processes; Yama otherwise lets only forebears at its memory,
 * which is how the CUDA driver parks it. */
static void belong(bool local, pid_t parent)
{
	if (!local)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_REFUSED);
	prctl(PR_SET_DUMPABLE, 1);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
}

static pid_t start(char **argv, const sigset_t *mask, bool local)
{
	pid_t self = getpid(), command = fork();

	if (command < 0) {
		complain("cannot fork: %s", strerror(errno));
		_exit(EXIT_CANNOT_RUN);
	}
	if (command == 0) {
		/* A session of its own: what the command sends to its group must not come back here. */
		setsid();
		belong(local, self);
		sigprocmask(SIG_SETMASK, mask, NULL);
		_exit(run_command(argv));
	}
	return command;
}

static void reap(pid_t command)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == command)
			_exit(exit_code_of(status));
}

static noreturn void watch(pid_t command)
{
	sigset_t all;

	sigfillset(&all);
	for (;;) {
		int signum = sigwaitinfo(&all, NULL);

		if (signum == SIGCHLD)
			reap(command);
		else if (signum > 0)
			kill(command, signum);
	}
}

noreturn void tree_run(int gate, char **args, const sigset_t *mask, bool local)
{
	pid_t parent = getppid();
	struct frame grant;
	char *generation;

	setsid();
	belong(local, parent);
	/* Daemons that lose their parent must stay below this process, or a dump would miss them. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	grant = wait_at_gate(gate);
	close(gate);
	frame_field(&grant);
	generation = frame_field(&grant);
	if (!generation || setenv("KYB_SEAT_GEN", generation, 1) < 0)
		_exit(EXIT_CANNOT_RUN);
	prctl(PR_SET_NAME, "kyb-tree");
	watch(start(join(grant, args), mask, local));
}
