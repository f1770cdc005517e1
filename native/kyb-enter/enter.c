/* kyb-enter: runs one program, given as an open file, inside the namespaces of a container.
 *
 * What runs there has rights that the container must not get hold of. So everything comes as a
 * descriptor, opened outside; nothing is looked up by a path of the container's, the program sees
 * no environment but a PATH that leads nowhere, and no descriptor but those named. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <linux/nsfs.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdnoreturn.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

/* A system call for which not every C library has a function, or the same one. */
#define called(...) ((int)syscall(__VA_ARGS__))

/* What kyb-enter itself holds open lies above ABOVE, so that no --keep can fall onto it. */
enum { EXIT_USAGE = 2, EXIT_FAILED = 125, MOST = 32, PID_MOST = 1 << 22, ABOVE = 512 };

static const char usage[] =
	"usage: kyb-enter --target FD --init FD --run FD [--cgroup FD]... [--keep FD=AS]...\n"
	"                 [--lent FD]... [--last-pid N] [--but-ipc] [--die-with-me] [--status FD]\n"
	"                 -- NAME [ARG...]\n"
	"       kyb-enter --here --run FD [--keep FD=AS]... [--lent FD]... -- NAME [ARG...]\n"
	"  --target       pidfd of the container's process 1: its namespaces are entered\n"
	"  --init         the program that process 1 must run, open\n"
	"  --here         no container: the program is run where kyb-enter is\n"
	"  --run          the program, open; it is started as NAME ARG...\n"
	"  --cgroup       a cgroup to join: its tasks (version 1) or cgroup.procs, open for\n"
	"                 writing, or one folder of version 2, which is quicker than its file\n"
	"  --keep         a descriptor that the program gets, as number AS; a folder becomes a mount\n"
	"                 of its own, which nothing leads out of\n"
	"  --lent         a descriptor that stays open here, and that the program doesn't get\n"
	"  --last-pid     the program and what follows it get PIDs above this one\n"
	"  --but-ipc      the namespace of System V IPC is not entered\n"
	"  --die-with-me  the program is killed when kyb-enter dies\n"
	"  --status       a file whose first character becomes 0 if the program ends well, else 1;\n"
	"                 then kyb-enter stays, with all that it was given, until the target ends\n";

/* In a proc file system nobody can make a file: no program is ever found by this PATH. */
static char *const environment[] = {"PATH=/proc/none", NULL};

static const int namespaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
			      CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_NEWTIME;

static struct {
	int target, init, run, born_in;
	int cgroups[MOST], keep[MOST], keep_as[MOST];
	size_t cgroup_count, keep_count;
	int last_pid, status;
	bool die_with_me, here, but_ipc;
} asked = {.target = -1, .init = -1, .run = -1, .born_in = -1, .status = -1};

static noreturn void fail(const char *what)
{
	fprintf(stderr, "kyb-enter: %s: %s\n", what, strerror(errno));
	_exit(EXIT_FAILED);
}

/* The container isn't what it was taken for: nothing is started in it. */
static noreturn void distrust(const char *why)
{
	fprintf(stderr, "kyb-enter: not a container's process 1: %s\n", why);
	_exit(EXIT_FAILED);
}

__attribute__((format(printf, 1, 2))) static noreturn void refuse(const char *format, ...)
{
	va_list arguments;

	fputs("kyb-enter: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n%s", usage);
	_exit(EXIT_USAGE);
}

/* --- arguments ------------------------------------------------------------------------------ */

static int number(const char *option, const char *text, int least, int most)
{
	char *end = NULL;
	long value;

	errno = 0;
	value = text && *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;
	if (errno || !end || *end || value < least || value > most)
		refuse("%s must be a number of %d to %d", option, least, most);
	return (int)value;
}

static int descriptor(const char *option, const char *text)
{
	int fd = number(option, text, 3, 1 << 20);
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, ABOVE);

	if (copy < 0)
		refuse("%s: descriptor %d: %s", option, fd, strerror(errno));
	return copy;
}

static void check_room(const char *option, size_t count)
{
	if (count == MOST)
		refuse("%s is given more than %d times", option, MOST);
}

static void add_cgroup(const char *option, const char *text)
{
	check_room(option, asked.cgroup_count);
	asked.cgroups[asked.cgroup_count++] = descriptor(option, text);
}

static void add_keep(const char *option, char *text)
{
	char *as = text ? strchr(text, '=') : NULL;

	check_room(option, asked.keep_count);
	if (!as)
		refuse("%s must be FD=AS", option);
	*as++ = 0;
	asked.keep[asked.keep_count] = descriptor(option, text);
	asked.keep_as[asked.keep_count++] = number(option, as, 3, ABOVE - 1);
}

/* Returns the program's own arguments, from its name on. */
static char **understand(char **argv)
{
	for (char **at = argv + 1; *at; at++) {
		const char *option = *at;

		if (strcmp(option, "--") == 0)
			return at + 1;
		if (strcmp(option, "--die-with-me") == 0 || strcmp(option, "--here") == 0) {
			*(option[2] == 'h' ? &asked.here : &asked.die_with_me) = true;
			continue;
		}
		if (strcmp(option, "--but-ipc") == 0) {
			asked.but_ipc = true;
			continue;
		}
		at++;
		if (strcmp(option, "--target") == 0)
			asked.target = descriptor(option, *at);
		else if (strcmp(option, "--init") == 0)
			asked.init = descriptor(option, *at);
		else if (strcmp(option, "--run") == 0)
			asked.run = descriptor(option, *at);
		else if (strcmp(option, "--cgroup") == 0)
			add_cgroup(option, *at);
		else if (strcmp(option, "--keep") == 0)
			add_keep(option, *at);
		else if (strcmp(option, "--lent") == 0)
			descriptor(option, *at);
		else if (strcmp(option, "--status") == 0)
			asked.status = descriptor(option, *at);
		else if (strcmp(option, "--last-pid") == 0)
			asked.last_pid = number(option, *at, 1, PID_MOST);
		else
			refuse("%s is no option", option);
	}
	refuse("-- and the program's name are missing");
}

/* --- the way in ------------------------------------------------------------------------------ */

/* The kernel lets one thread move itself by "tasks" at once, and is 10 ms and more about a move of
 * any other kind, since it waits until no processor forks. */
static void join(int cgroup)
{
	struct statfs found;
	struct stat file;

	if (fstatfs(cgroup, &found) < 0 || fstat(cgroup, &file) < 0)
		fail("--cgroup");
	if (found.f_type != CGROUP_SUPER_MAGIC && found.f_type != CGROUP2_SUPER_MAGIC)
		refuse("--cgroup: descriptor %d is no file of a cgroup", cgroup);
	if (S_ISDIR(file.st_mode)) {
		if (found.f_type != CGROUP2_SUPER_MAGIC || asked.born_in >= 0)
			refuse("--cgroup: only one folder, of version 2, can be given");
		asked.born_in = cgroup;
		return;
	}
	if (write(cgroup, "0", 1) != 1)
		fail("cannot join a cgroup");
}

static int above(int fd)
{
	return fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, ABOVE);
}

/* A folder as the root of a mount of its own, which is nowhere: ".." stays there. The program works
 * in the container's mounts, where a link may lead to what it has open or is in. */
static int alone(int fd)
{
	struct stat file;
	int copy;

	if (fstat(fd, &file) < 0)
		fail("--keep");
	if (!S_ISDIR(file.st_mode))
		return fd;
	copy = above(called(SYS_open_tree, fd, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
	if (copy < 0)
		fail("--keep: cannot take a folder out of its surroundings");
	return copy;
}

/* Everything but 0, 1, 2 and what is to be kept ends with exec. */
static void close_others(void)
{
	if (syscall(SYS_close_range, 3, ~0u, 4 /* CLOSE_RANGE_CLOEXEC */) < 0)
		fail("close_range");
	for (size_t i = 0; i < asked.keep_count; i++)
		if (dup2(alone(asked.keep[i]), asked.keep_as[i]) < 0)
			fail("--keep");
}

/* A proc file system of our own and of our PID namespace, whatever is mounted where we are: the
 * container's is not to be believed, and /proc/sys of the agent's is read-only. */
static int open_proc(void)
{
	int system = called(SYS_fsopen, "proc", FSOPEN_CLOEXEC), mounted = -1;

	if (system >= 0 && called(SYS_fsconfig, system, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		mounted = above(called(SYS_fsmount, system, FSMOUNT_CLOEXEC, 0));
	if (mounted < 0)
		fail("cannot open a proc file system");
	return mounted;
}

static int open_last_pid(int proc)
{
	int file = above(openat(proc, "sys/kernel/ns_last_pid", O_RDWR | O_CLOEXEC));

	if (file < 0)
		fail("cannot open ns_last_pid");
	return file;
}

/* The kernel raises the number of the PID namespace that the writer is in. */
static void raise_last_pid(int file)
{
	char text[16] = "";

	if (pread(file, text, sizeof(text) - 1, 0) < 0)
		fail("ns_last_pid");
	if (atoi(text) >= asked.last_pid)
		return;
	snprintf(text, sizeof(text), "%d", asked.last_pid);
	if (pwrite(file, text, strlen(text), 0) < 0)
		fail("ns_last_pid");
}

/* Whether the process of this pidfd has ended. */
static bool has_ended(int pidfd)
{
	struct pollfd waiting = {.fd = pidfd, .events = POLLIN};

	return poll(&waiting, 1, 0) > 0;
}

static void die_with(int parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (has_ended(parent))
		_exit(EXIT_FAILED);
}

/* What comes back in the container would have the agent's session keyring, and share it with all
 * others that came back. Who may not ask for one of his own may not use any. */
static void leave_keys(void)
{
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS &&
	    errno != EPERM)
		fail("cannot leave the agent's keyring");
}

static noreturn void become(char **argv, int parent)
{
	sigset_t none;

	leave_keys();
	if (asked.die_with_me)
		die_with(parent);
	for (int signum = 1; signum < NSIG; signum++)
		signal(signum, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	syscall(SYS_execveat, asked.run, "", argv, environment, AT_EMPTY_PATH);
	fail("cannot start the program");
}

static pid_t forked(void)
{
	pid_t child = fork();

	if (child < 0)
		fail("cannot fork into the container");
	return child;
}

static int ended(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			fail("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int own_pidfd(void)
{
	int self = above(called(SYS_pidfd_open, getpid(), 0));

	if (self < 0)
		fail("pidfd_open");
	return self;
}

/* Goes on as a child that begins in the cgroup, for which nobody has to wait. Without
 * --die-with-me it outlives this process, which is still where it was. */
static void be_born_in(int cgroup)
{
	struct clone_args how = {
		.flags = CLONE_INTO_CGROUP,
		.exit_signal = SIGCHLD,
		.cgroup = (unsigned long long)cgroup,
	};
	int self = own_pidfd();
	pid_t child = (pid_t)syscall(SYS_clone3, &how, sizeof(how));

	if (child < 0)
		fail("cannot begin in a cgroup");
	if (child > 0)
		_exit(ended(child));
	if (asked.die_with_me)
		die_with(self);
}

/* What a program served that has died must not be let go of before those whom it served are gone:
 * see docs/concepts/lazy-restores.md. Whoever can't tell doesn't stay: nobody would come for it. */
static int told(int code)
{
	struct pollfd waiting = {.fd = asked.target, .events = POLLIN};

	if (asked.status < 0)
		return code;
	if (pwrite(asked.status, code ? "1" : "0", 1, 0) != 1)
		return EXIT_FAILED;
	while (code && poll(&waiting, 1, -1) < 0 && errno == EINTR)
		;
	return code;
}

/* --- whose namespaces these are --------------------------------------------------------------- */

/* The number that we see the target by. It must be process 1 one PID namespace below ours: deeper
 * ones anybody can make. */
static int number_of_target(int proc)
{
	char path[48], line[128];
	int pid = 0, inside = 0, deeper = 0, found = 0;
	FILE *file;

	snprintf(path, sizeof(path), "self/fdinfo/%d", asked.target);
	file = fdopen(openat(proc, path, O_RDONLY | O_CLOEXEC), "r");
	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, "NSpid:", 6) == 0)
			found = sscanf(line + 6, "%d %d %d", &pid, &inside, &deeper);
	if (file)
		fclose(file);
	if (found != 2 || pid <= 0 || inside != 1)
		distrust("it is not number 1 of the PID namespace below ours");
	return pid;
}

static bool same(const struct stat *one, const struct stat *other)
{
	return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

static void check_program(int proc, int pid)
{
	struct stat runs, wanted;
	char path[32];

	snprintf(path, sizeof(path), "%d/exe", pid);
	if (fstatat(proc, path, &runs, 0) < 0 || fstat(asked.init, &wanted) < 0 ||
	    !same(&runs, &wanted))
		distrust("it runs another program than ours");
}

static int namespace_of(int proc, const char *path)
{
	int found = openat(proc, path, O_RDONLY | O_CLOEXEC);

	if (found < 0)
		fail(path);
	return found;
}

/* Whether this question about the namespace at `path` is answered by the one at `ours`. */
static bool leads_to(int proc, const char *path, unsigned long question, const char *ours)
{
	int one = namespace_of(proc, path), own = namespace_of(proc, ours);
	int answer = called(SYS_ioctl, one, question);
	struct stat told, wanted;
	bool right = answer >= 0 && fstat(answer, &told) == 0 && fstat(own, &wanted) == 0 &&
		     same(&told, &wanted);

	close(one);
	close(own);
	if (answer >= 0)
		close(answer);
	return right;
}

/* What we have entered must be the node's own making: who owns a user namespace lays out what he
 * likes in the namespaces that belong to it. Asked of this process, since the target's may change. */
static void check_namespaces(int proc)
{
	static const char *const entered[] = {"self/ns/mnt", "self/ns/pid_for_children",
					      "self/ns/net", "self/ns/ipc", "self/ns/uts"};

	for (size_t i = 0; i < sizeof(entered) / sizeof(*entered); i++)
		if (!leads_to(proc, entered[i], NS_GET_USERNS, "self/ns/user"))
			distrust("its namespaces belong to another user namespace than ours");
	if (!leads_to(proc, "self/ns/pid_for_children", NS_GET_PARENT, "self/ns/pid"))
		distrust("its PID namespace is not the one below ours");
}

static void enter(int proc)
{
	struct statfs found;
	int pid;

	if (setns(asked.target, namespaces & ~(asked.but_ipc ? CLONE_NEWIPC : 0)) < 0)
		fail("cannot enter the container's namespaces");
	pid = number_of_target(proc);
	check_program(proc, pid);
	check_namespaces(proc);
	if (statfs("/proc", &found) < 0 || found.f_type != PROC_SUPER_MAGIC) {
		fputs("kyb-enter: the container's /proc is no proc file system\n", stderr);
		_exit(EXIT_FAILED);
	}
	/* While it is there nobody else has its number: what was asked by number was asked of it. */
	if (has_ended(asked.target))
		distrust("it has ended");
}

int main(int argc, char **argv)
{
	char **program;
	int self, proc, last_pid;
	pid_t child;

	if (argc == 2 && strcmp(argv[1], "--help") == 0)
		return fputs(usage, stdout) < 0;
	program = understand(argv);
	if (asked.run < 0 || !*program)
		refuse("--run and the program's name are needed");
	if (asked.here ? asked.target >= 0 || asked.init >= 0 || asked.status >= 0
		       : asked.target < 0 || asked.init < 0)
		refuse("either --target and --init are needed, or --here without them and --status");
	for (size_t i = 0; i < asked.cgroup_count; i++)
		join(asked.cgroups[i]);
	if (asked.born_in >= 0)
		be_born_in(asked.born_in);
	self = own_pidfd();
	proc = open_proc();
	last_pid = asked.last_pid ? open_last_pid(proc) : -1;
	close_others();
	if (!asked.here)
		enter(proc);
	/* Only who is in the namespace may raise its number, and the program shall be above it. */
	if (asked.last_pid) {
		child = forked();
		if (child == 0) {
			raise_last_pid(last_pid);
			_exit(0);
		}
		if (ended(child))
			return EXIT_FAILED;
	}
	child = forked();
	if (child == 0)
		become(program, self);
	return told(ended(child));
}
