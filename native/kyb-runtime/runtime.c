/* kyb-runtime: stands in for runc, and is runc (exec) for whatever it is asked but two things:
 * "checkpoint" of a managed container has the node agent take its state out of the GPUs first, and
 * "restore" tells the agent whom to expect. The manual is docs/how-to/install/runtime-wrapper.md. */
#define _GNU_SOURCE
#include "kyb-init.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REAL_SUFFIX ".real"
#define SOCKET RUN_DIR "/runtime.sock"
#define CONTAINERS RUN_DIR "/containers/"
/* For a runc that resumes or pauses: it takes milliseconds, or seconds where it tries again. Only
 * builds for the tests name another. */
#ifndef RUNTIME_MS
#define RUNTIME_MS (60 * 1000)
#endif

enum {
	ANSWER_MS = 600 * 1000, /* the seat's requests are finished first */
	PAUSE_TRIES = 50,
	PAUSE_AGAIN_MS = 100,
	SAID_LIMIT = 400,       /* bytes of what runc says that a sentence quotes */
	LOCK_FD = 100,          /* clear of the numbers that runc hands to CRIU */
	ID_LIMIT = 1024         /* bytes of a container's ID, as containerd has them */
};

static const char *const with_value[] = {"root", "log", "log-format", "criu", "rootless"};

static struct {
	char real[PATH_MAX]; /* the runtime that does the work */
	const char *log;     /* runc's own log, which containerd quotes */
	bool json;
	const char *root;
	const char *command;
	const char *container;
} asked;

static struct inbox inbox;

static char said[SAID_LIMIT]; /* by the real runtime, last */

/* --- what is said when it can't be done --------------------------------------------------------- */

static void say_in_log(const char *sentence)
{
	char now[32], line[1400];
	time_t seconds = time(NULL);
	struct tm tm;
	int length, fd = open(asked.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

	if (fd < 0)
		return;
	strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &tm));
	length = snprintf(line, sizeof(line),
			  asked.json ? "{\"level\":\"error\",\"msg\":\"%s\",\"time\":\"%s\"}\n"
				     : "level=error msg=\"%s\" time=%s\n",
			  sentence, now);
	if (length > 0 && write(fd, line, (size_t)length) < 0)
		perror("kyb-runtime");
	close(fd);
}

static noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

static noreturn void fail(const char *format, ...)
{
	char sentence[1200];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(sentence, sizeof(sentence), format, arguments);
	va_end(arguments);
	for (char *at = sentence; *at; at++)
		if ((unsigned char)*at < ' ' || *at == '"' || *at == '\\')
			*at = '\''; /* nothing in it ends the log's string */
	fprintf(stderr, "kyb-runtime: %s\n", sentence);
	if (asked.log)
		say_in_log(sentence);
	exit(1);
}

/* --- what is asked ------------------------------------------------------------------------------ */

/* The value of option argv[*at], which then is the last argument that belongs to it. */
static const char *value_of(int argc, char **argv, int *at)
{
	const char *equals = strchr(argv[*at], '=');

	if (equals)
		return equals + 1;
	return *at + 1 < argc ? argv[++*at] : NULL;
}

static void take_option(const char *name, const char *value)
{
	size_t length = strcspn(name, "=");

	if (length == 3 && strncmp(name, "log", 3) == 0)
		asked.log = value;
	else if (length == 10 && strncmp(name, "log-format", 10) == 0)
		asked.json = value && strcmp(value, "json") == 0;
	else if (length == 4 && strncmp(name, "root", 4) == 0)
		asked.root = value;
}

static bool takes_value(const char *name)
{
	size_t length = strcspn(name, "=");

	for (size_t i = 0; i < sizeof(with_value) / sizeof(*with_value); i++)
		if (strlen(with_value[i]) == length && strncmp(with_value[i], name, length) == 0)
			return true;
	return false;
}

/* runc [global options] COMMAND [options] CONTAINER */
static void understand(int argc, char **argv)
{
	for (int at = 1; at < argc; at++) {
		const char *name = argv[at];

		if (*name != '-') {
			asked.command = name;
			asked.container = at + 1 < argc ? argv[argc - 1] : NULL;
			return;
		}
		name += strspn(name, "-");
		if (takes_value(name))
			take_option(name, value_of(argc, argv, &at));
	}
}

static bool is_id(const char *text)
{
	return text && *text && *text != '-' && *text != '.' && strlen(text) < ID_LIMIT &&
	       !strchr(text, '/');
}

static void find_real(void)
{
	ssize_t length = readlink("/proc/self/exe", asked.real, sizeof(asked.real) - sizeof(REAL_SUFFIX));

	if (length < 0)
		fail("/proc/self/exe can't be read: %s", strerror(errno));
	memcpy(asked.real + length, REAL_SUFFIX, sizeof(REAL_SUFFIX));
}

static noreturn void be_real(char **argv)
{
	execv(asked.real, argv);
	fail("%s can't be run: %s; make it a link to runc", asked.real, strerror(errno));
}

/* --- the agent ---------------------------------------------------------------------------------- */

/* The agent's next frame, or false if there is none within the limit. */
static bool hear(int fd, struct frame *frame, int limit_ms)
{
	long long end = 0;
	struct timespec now;
	int known;

	clock_gettime(CLOCK_MONOTONIC, &now);
	end = (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000 + limit_ms;
	while ((known = inbox_next(&inbox, frame)) == 0) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		long long left;
		ssize_t got;

		clock_gettime(CLOCK_MONOTONIC, &now);
		left = end - ((long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
		if (left <= 0 || poll(&ready, 1, (int)left) == 0)
			return false;
		got = inbox_fill(&inbox, fd);
		if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
			return false;
	}
	return known > 0;
}

/* Keeps the last line of a file, cut at its beginning. */
static void keep_last_line(int fd)
{
	off_t end = lseek(fd, 0, SEEK_END);
	off_t from = end > SAID_LIMIT - 1 ? end - (SAID_LIMIT - 1) : 0;
	ssize_t length = end > 0 ? pread(fd, said, SAID_LIMIT - 1, from) : 0;
	char *line;

	while (length > 0 && said[length - 1] == '\n')
		length--;
	said[length > 0 ? length : 0] = '\0';
	line = strrchr(said, '\n');
	if (line)
		memmove(said, line + 1, strlen(line));
}

/* Its status, once it has ended. One that hangs is killed, and nothing is continued behind it. */
static int end_of(pid_t child, const char *command)
{
	struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN};
	int status = 0;

	if (ended.fd >= 0 && poll(&ended, 1, RUNTIME_MS) == 0) {
		kill(child, SIGKILL);
		fail("%s %s has hung for %d s and was killed; see whether the container is paused, then "
		     "try again",
		     asked.real, command, RUNTIME_MS / 1000);
	}
	if (ended.fd >= 0)
		close(ended.fd);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

/* Runs the real runtime with one command on the container; whether that went well. What it says of
 * an error is in `said`. */
static bool runtime(const char *command)
{
	const char *argv[] = {asked.real, "--root", asked.root, command, asked.container, NULL};
	const char *plain[] = {asked.real, command, asked.container, NULL};
	int status = 0, errors = memfd_create("kyb-runtime", MFD_CLOEXEC);
	pid_t child = fork();

	if (child == 0) {
		int nowhere = open("/dev/null", O_RDWR);

		dup2(nowhere, STDIN_FILENO);
		dup2(nowhere, STDOUT_FILENO);
		dup2(errors < 0 ? nowhere : errors, STDERR_FILENO);
		execv(asked.real, (char *const *)(asked.root ? argv : plain));
		_exit(127);
	}
	if (child > 0)
		status = end_of(child, command);
	if (errors >= 0) {
		keep_last_line(errors);
		close(errors);
	}
	return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* In cgroups of version 1 runc can't freeze what forks meanwhile; it gives up after a while, lets it
 * run on, and may well freeze it when asked again. */
static bool paused_again(void)
{
	const struct timespec pause = {.tv_nsec = PAUSE_AGAIN_MS * 1000L * 1000};

	for (int tries = 1; !runtime("pause"); tries++) {
		if (tries == PAUSE_TRIES)
			return false;
		nanosleep(&pause, NULL);
	}
	return true;
}

/* Held by whoever takes the image, this process or what it becomes, also if the agent is new. */
static void take_lock(const char *marker)
{
	int fd = open(marker, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		fail("%s can't be opened: %s; start the node agent, then try again", marker,
		     strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		fail("another checkpoint of this container is under way; wait for its end");
	if (dup2(fd, LOCK_FD) < 0)
		fail("no descriptor is left: %s", strerror(errno));
	close(fd);
}

/* Containers that are not managed have no file there, and nobody is asked about them. */
static void prepare_checkpoint(void)
{
	char marker[sizeof(CONTAINERS) + ID_LIMIT];
	struct frame frame;
	const char *verb, *sentence;
	bool paused;
	int fd;

	snprintf(marker, sizeof(marker), CONTAINERS "%s", asked.container);
	if (access(marker, F_OK) != 0)
		return;
	take_lock(marker);
	fd = wire_connect(SOCKET);
	if (fd < 0)
		fail("the node agent is away (" SOCKET ": %s), and what this container has in GPU memory "
		     "can't be saved without it; start the agent, then try again",
		     strerror(errno));
	/* containerd pauses a container before its checkpoint: a frozen process can't leave a GPU. */
	paused = runtime("resume");
	if (!wire_send(fd, 3, (const char *const[]){"checkpoint", KYB_PROTOCOL, asked.container}) ||
	    !hear(fd, &frame, ANSWER_MS)) {
		if (paused)
			paused_again();
		fail("the node agent did not answer; look into its log, then try again");
	}
	verb = frame_field(&frame);
	sentence = frame_field(&frame);
	if (paused && !paused_again())
		fail("the container could not be paused again (%s); try again",
		     *said ? said : "the runtime does not say why");
	if (strcmp(verb, "ready") != 0)
		fail("the node agent refuses: %s", sentence ? sentence : "it speaks another protocol");
	close(fd);
}

/* Who is restored wakes by the agent as soon as it has its turn; until then it stands still. */
static void announce_restore(void)
{
	int fd = wire_connect(SOCKET);

	if (fd < 0)
		return;
	wire_send(fd, 3, (const char *const[]){"restore", KYB_PROTOCOL, asked.container});
	close(fd);
}

int main(int argc, char **argv)
{
	understand(argc, argv);
	find_real();
	if (asked.command && is_id(asked.container)) {
		if (strcmp(asked.command, "checkpoint") == 0)
			prepare_checkpoint();
		else if (strcmp(asked.command, "restore") == 0)
			announce_restore();
	}
	be_real(argv);
}
