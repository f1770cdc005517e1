/* Arguments, and nothing else. */
#define _GNU_SOURCE
#include "kyb-init.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef KYB_VERSION
#define KYB_VERSION "unknown"
#endif

enum { PID_LIMIT = 1 << 22 };

static const char usage[] =
	"usage: kyb-init -- COMMAND [ARG...]          wait for the seat's turn, then run COMMAND\n"
	"       kyb-init --image -- [ARG...]          the same with the image's own entry point\n"
	"       kyb-init --local SOCKET -- COMMAND [ARG...]\n"
	"                                             on a box: the agent listens at SOCKET\n"
	"       kyb-init --parked PID                 start nothing: a tree whose root was PID is brought\n"
	"                                             here by the agent\n"
	"       kyb-init status                       say what this container's seat is doing\n"
	"       kyb-init probe [--liveness SECONDS] -- COMMAND [ARG...]\n"
	"                                             run COMMAND, or answer for a parked process; with\n"
	"                                             --liveness, after so long a start it must succeed\n"
	"       kyb-init --help | --version\n";

void complain(const char *format, ...)
{
	char line[1024];
	int length = snprintf(line, sizeof(line), "kyb-init: ");
	va_list arguments;

	va_start(arguments, format);
	length += vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, arguments);
	va_end(arguments);
	if (length > (int)sizeof(line) - 2)
		length = (int)sizeof(line) - 2;
	line[length++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)length) < 0)
		return; /* standard error is gone: there is nobody left to tell */
}

int exit_code_of(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* What follows "--" at argv[at], or NULL if it does not stand there. */
static char **after_dashes(int argc, char **argv, int at)
{
	return at < argc && strcmp(argv[at], "--") == 0 ? argv + at + 1 : NULL;
}

/* Milliseconds of "--liveness SECONDS" at argv[2], or -1 if it does not stand there. */
static long long liveness_of(int argc, char **argv)
{
	char *end = NULL;
	long long seconds;

	if (argc < 4 || strcmp(argv[2], "--liveness") != 0)
		return -1;
	seconds = strtoll(argv[3], &end, 10);
	return *argv[3] && !*end && seconds >= 0 && seconds < 1000000 ? seconds * 1000 : -1;
}

pid_t tree_number(const char *text)
{
	char *end = NULL;
	long pid = strtol(text, &end, 10);

	return *text && !*end && pid > 1 && pid <= PID_LIMIT ? (pid_t)pid : -1;
}

/* The number at argv[2] after "--parked", or -1 if it does not stand there. */
static pid_t parked_of(int argc, char **argv)
{
	return argc == 3 && strcmp(argv[1], "--parked") == 0 ? tree_number(argv[2]) : -1;
}

int main(int argc, char **argv)
{
	const char *first = argc > 1 ? argv[1] : "";
	bool image = strcmp(first, "--image") == 0, probe = strcmp(first, "probe") == 0;
	long long liveness = probe ? liveness_of(argc, argv) : -1;
	int skipped = liveness >= 0 ? 2 : 0;
	bool local = argc > 2 && strcmp(first, "--local") == 0;
	char **args = after_dashes(argc, argv, local ? 3 : image || probe ? 2 + skipped : 1);

	/* Who runs as the same user, by a hook or kubectl exec, must not trace this process, nor take
	 * its connection to the agent. Its command is dumpable again, by its exec. */
	prctl(PR_SET_DUMPABLE, 0);
	if (strcmp(first, "--help") == 0)
		return fputs(usage, stdout) < 0;
	if (strcmp(first, "--version") == 0)
		return printf("kyb-init %s, protocol %s\n", KYB_VERSION, KYB_PROTOCOL) < 0;
	if (strcmp(first, "status") == 0 && argc == 2)
		return ask_status();
	if (args && *args && probe)
		return ask_probe(liveness, args);
	if (parked_of(argc, argv) > 0)
		init_run_parked(parked_of(argc, argv));
	if (args && *args && local) {
		if (wire_local(argv[2]))
			init_run_local(args);
		complain("%s is no path of a socket, or is too long", argv[2]);
		return EXIT_USAGE;
	}
	if (args && (*args || image))
		init_run(image, args);
	fputs(usage, stderr);
	return EXIT_USAGE;
}
