/* Process 1: asks the node agent for the container's turn, keeps the tree's status, and stays when
 * the tree is dumped to disk. It never waits for the agent: all of it is one poll loop. */
#define _GNU_SOURCE
#include "kyb-init.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* An agent that is being restarted is met soon; one of another protocol is not bothered. */
enum { RETRY_MS = 100, RETRY_REFUSED_MS = 1000, TERM_LIMIT_MS = 2000, NEVER = -1 };

/* What this build understands beyond the protocol's first words; an agent sends nothing else. */
#define FEATURES "state,cooperate,parked,alone,turn"

enum phase { WAITING, RUNNING, HELD, PARKED };

static const char *const comm[] = {"kyb-wait", "kyb-run", "kyb-hold", "kyb-parked"};
static const char *const phase_name[] = {"waiting", "running", "running", "parked"};

static struct {
	enum phase phase;
	const char *mode;
	pid_t tree;
	int tree_status; /* of the tree's last end, meaningful once it ended while held */
	int gate;        /* write end; -1 once the command was started */
	bool born_parked; /* until the tree of another container has come */
	pid_t expected;   /* the root of such a tree, from the agent's word to the gate's end; else 0 */
	char generation[24];

	int agent; /* the seat's socket, -1 while the agent is away */
	long long retry_at;

	int term_signal; /* asked about, not yet forwarded; 0: none */
	long long term_at;
} self = {.agent = -1, .generation = "0"};

static struct inbox inbox;

long long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void enter(enum phase phase)
{
	self.phase = phase;
	prctl(PR_SET_NAME, comm[phase]);
}

/* --- the agent ------------------------------------------------------------------------------ */

static void hang_up(int retry_after)
{
	if (self.agent >= 0)
		close(self.agent);
	self.agent = -1;
	self.retry_at = now_ms() + retry_after;
}

void agent_tell(size_t count, const char *const *fields)
{
	if (self.agent >= 0 && !wire_send(self.agent, count, fields))
		hang_up(RETRY_MS);
}

static void tell_number(const char *verb, int number)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", number);
	agent_tell(2, (const char *const[]){verb, text});
}

static noreturn void leave(int code)
{
	tell_number("exit", code);
	_exit(code);
}

static void call_agent(void)
{
	self.agent = wire_connect(seat_socket_path());
	if (self.agent < 0) {
		hang_up(RETRY_MS);
		return;
	}
	memset(&inbox, 0, offsetof(struct inbox, bytes));
	pod_open();
	agent_tell(6, (const char *const[]){"hello", KYB_PROTOCOL, phase_name[self.phase],
					    self.generation, self.mode, FEATURES});
	if (self.term_signal)
		tell_number("term", self.term_signal);
	pod_greet();
}

static void forward_term(void)
{
	int signum = self.term_signal;

	self.term_signal = 0;
	if (signum)
		kill(self.tree, signum);
}

static void on_go(const struct frame *whole, const char *generation)
{
	if (self.phase != WAITING || self.expected)
		return; /* an agent that was restarted may grant again what runs already */
	if (!generation || strlen(generation) >= sizeof(self.generation)) {
		complain("the agent's grant has no generation; this build speaks protocol " KYB_PROTOCOL);
		leave(EXIT_REFUSED);
	}
	strcpy(self.generation, generation);
	wire_write(self.gate, whole); /* a tree that died meanwhile is reported by SIGCHLD */
	close(self.gate);
	self.gate = -1;
	enter(RUNNING);
	pod_started(self.tree);
}

/* Nothing is started: a tree whose root was this number elsewhere is brought here. */
static void on_parked(const char *number)
{
	if (self.phase != WAITING || self.expected)
		return;
	self.expected = tree_number(number ? number : "");
	if (self.expected < 0) {
		complain("the agent names no process that a tree can begin with");
		leave(EXIT_REFUSED);
	}
	kill(self.tree, SIGKILL);
}

/* The gate, behind which nothing was started, has ended: its number is free for the tree's root. */
static void close_gate(void)
{
	close(self.gate);
	self.gate = -1;
	self.tree = self.expected;
	self.expected = 0;
	self.born_parked = true;
	enter(PARKED);
}

/* A grant refused, or an agent of another protocol: the container ends while nothing is lost by it,
 * and a running command goes on without an agent that understands it. */
static void on_refusal(const char *sentence)
{
	if (self.phase != WAITING) {
		hang_up(RETRY_REFUSED_MS);
		return;
	}
	complain("%s", sentence);
	leave(EXIT_REFUSED);
}

/* A socket whose other end is outside would make an image of this container impossible. */
static void be_alone(void)
{
	pod_close();
	hang_up(RETRY_MS);
}

static void on_frame(struct frame frame)
{
	struct frame whole = frame;
	const char *verb = frame_field(&frame);
	const char *argument = frame_field(&frame);

	if (strcmp(verb, "ok") == 0)
		forward_term();
	else if (strcmp(verb, "go") == 0)
		on_go(&whole, argument);
	else if (strcmp(verb, "parked") == 0)
		on_parked(argument);
	else if (strcmp(verb, "state") == 0)
		pod_state(argument, frame_field(&frame));
	else if (strcmp(verb, "cooperate") == 0)
		pod_ask(argument, frame_field(&frame));
	else if (strcmp(verb, "alone") == 0)
		be_alone();
	else if (strcmp(verb, "turn") == 0)
		pod_hints_heard();
	else if (strcmp(verb, "refuse") == 0)
		on_refusal(argument ? argument : "the agent refused this container");
	else
		on_refusal("the agent does not speak protocol " KYB_PROTOCOL
			   ": use the kyb-init that came with it");
}

static void on_agent_readable(void)
{
	struct frame frame;
	ssize_t got = inbox_fill(&inbox, self.agent);
	int known = 0;

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		hang_up(RETRY_MS);
		return;
	}
	while (self.agent >= 0 && (known = inbox_next(&inbox, &frame)) == 1)
		on_frame(frame);
	if (self.agent >= 0 && known < 0)
		on_refusal("the agent sent a frame above 1 MiB, which protocol " KYB_PROTOCOL " forbids");
}

/* --- signals -------------------------------------------------------------------------------- */

static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != self.tree)
			continue;
		if (self.expected) {
			close_gate();
			continue;
		}
		self.tree_status = status;
		if (self.phase == WAITING || self.phase == RUNNING)
			leave(exit_code_of(status));
		enter(PARKED);
		if (self.term_signal) /* it came while there was a tree; who is parked ends at once */
			leave(128 + self.term_signal);
	}
}

static bool tree_is_child(void)
{
	siginfo_t info = {0};

	return waitid(P_PID, (id_t)self.tree, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static void on_resume(void)
{
	reap();
	if (self.phase != HELD && self.phase != PARKED)
		return;
	if (!tree_is_child())
		leave(exit_code_of(self.tree_status));
	enter(RUNNING);
	if (self.born_parked) {
		self.born_parked = false;
		pod_started(self.tree);
	}
	reap();
}

static bool ends_a_process(int signum)
{
	return signum == SIGTERM || signum == SIGINT || signum == SIGQUIT || signum == SIGHUP;
}

static void on_term(int signum)
{
	if (self.phase == WAITING || self.phase == PARKED)
		leave(128 + signum);
	if (self.term_signal) {
		forward_term(); /* asked twice: whoever insists gets it at once */
		kill(self.tree, signum);
		return;
	}
	self.term_signal = signum;
	self.term_at = now_ms() + TERM_LIMIT_MS;
	tell_number("term", signum);
}

static bool concerns_process_1_only(int signum)
{
	return signum == SIGPIPE || signum == SIGURG || signum == SIGTTIN || signum == SIGTTOU;
}

static void on_signal(const struct signalfd_siginfo *info)
{
	int signum = (int)info->ssi_signo;

	if (signum == SIGCHLD) {
		reap();
	} else if (signum == SIGRTMIN + 1 || signum == SIGRTMIN + 2) {
		/* From kill() outside the PID namespace only; sigqueue() could forge the PID. */
		if (info->ssi_code != SI_USER || info->ssi_pid != 0)
			return;
		if (signum == SIGRTMIN + 2)
			on_resume();
		else if (self.phase == RUNNING)
			enter(HELD);
	} else if (ends_a_process(signum)) {
		on_term(signum);
	} else if (self.phase == RUNNING || self.phase == HELD) {
		if (!concerns_process_1_only(signum))
			kill(self.tree, signum);
	}
}

/* --- the loop ------------------------------------------------------------------------------- */

static void on_time(void)
{
	long long now = now_ms();

	if (self.agent < 0 && now >= self.retry_at)
		call_agent();
	if (self.term_signal && now >= self.term_at)
		forward_term();
	pod_check();
}

static int until_next(void)
{
	long long next = -1, now = now_ms(), check = pod_next_check();

	if (self.agent < 0)
		next = self.retry_at;
	if (self.term_signal && (next < 0 || self.term_at < next))
		next = self.term_at;
	if (check >= 0 && (next < 0 || check < next))
		next = check;
	if (next < 0)
		return NEVER;
	return next > now ? (int)(next - now) : 0;
}

static noreturn void loop(int signals)
{
	struct signalfd_siginfo info;

	for (;;) {
		struct pollfd ready[2 + POD_FDS] = {{.fd = signals, .events = POLLIN}};

		on_time();
		ready[1] = (struct pollfd){.fd = self.agent, .events = POLLIN};
		if (poll(ready, 2 + pod_fds(ready + 2), until_next()) < 0)
			continue;
		while (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
			on_signal(&info);
		if (ready[1].revents && self.agent == ready[1].fd)
			on_agent_readable();
		pod_handle(ready + 2);
	}
}

static void fork_tree(char **args, const sigset_t *mask, bool local)
{
	int gate[2];

	/* The child is born with the name by which the agent finds it, before hello is sent. */
	prctl(PR_SET_NAME, "kyb-gate");
	if (pipe(gate) < 0 || (self.tree = fork()) < 0) {
		complain("cannot start: %s", strerror(errno));
		_exit(EXIT_CANNOT_RUN);
	}
	if (self.tree == 0) {
		close(gate[1]);
		tree_run(gate[0], args, mask, local);
	}
	close(gate[0]);
	self.gate = gate[1];
	enter(WAITING);
}

/* What every way of starting shares, up to the first look at the outside. */
static void prepare(const char *mode, sigset_t *mask, bool local)
{
	sigset_t all;

	if (!local && getpid() != 1) {
		complain("it must be process 1 of its container; shareProcessNamespace is not supported");
		_exit(EXIT_REFUSED);
	}
	self.mode = mode;
	signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would reap in our place */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, mask);
}

static noreturn void serve(void)
{
	sigset_t all;
	int signals;

	sigfillset(&all);
	signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0) {
		complain("cannot read signals: %s", strerror(errno));
		_exit(EXIT_CANNOT_RUN);
	}
	pod_open();
	loop(signals);
}

noreturn void init_run(bool image, char **args)
{
	sigset_t mask;

	prepare(image ? "image" : "plain", &mask, false);
	fork_tree(args, &mask, false); /* before anything else is open: the tree must inherit none of it */
	serve();
}

noreturn void init_run_local(char **args)
{
	sigset_t mask;

	prepare("plain", &mask, true);
	/* As process 1 it takes all that is left of the tree with it by itself; and a tree that is
	 * recreated has CRIU for a parent first, by whose end it must not be killed. */
	fork_tree(args, &mask, getpid() != 1);
	serve();
}

noreturn void init_run_parked(pid_t tree)
{
	sigset_t mask;

	prepare("plain", &mask, false);
	self.tree = tree;
	self.gate = -1;
	self.born_parked = true;
	enter(PARKED);
	serve();
}
