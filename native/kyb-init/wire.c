/* Frames: 4 bytes of big-endian length, then fields separated by NUL. */
#define _GNU_SOURCE
#include "kyb-init.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Fixed, so that no variable of a pod's leads its gate to somebody else than the node's agent. Only
 * builds for the tests may look elsewhere. */
static const char *path_of(const char *variable, const char *path)
{
#ifdef KYB_TEST_PATHS
	const char *other = getenv(variable);

	return other && *other ? other : path;
#else
	(void)variable;
	return path;
#endif
}

static char local_seat[sizeof(((struct sockaddr_un *)0)->sun_path)];
static char local_pod[sizeof(local_seat)];

bool wire_local(const char *socket)
{
	const char *slash = strrchr(socket, '/');
	int folder = slash ? (int)(slash - socket) : 0;

	if (!slash || strlen(socket) >= sizeof(local_seat))
		return false;
	strcpy(local_seat, socket);
	return snprintf(local_pod, sizeof(local_pod), "%.*s/init.sock", folder, socket) <
	       (int)sizeof(local_pod);
}

const char *seat_socket_path(void)
{
	if (*local_seat)
		return local_seat;
	return path_of("KYB_SEAT_SOCKET", "/run/kyb/seat.sock");
}

const char *pod_socket_path(void)
{
	if (*local_pod)
		return local_pod;
	return path_of("KYB_POD_SOCKET", "/kyb-pod/init.sock");
}

bool wire_address(struct sockaddr_un *address, const char *path)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (strlen(path) >= sizeof(address->sun_path))
		return false;
	strcpy(address->sun_path, path);
	return true;
}

int wire_connect(const char *path)
{
	struct sockaddr_un address;
	int fd;

	if (!wire_address(&address, path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int reason = errno;

		close(fd);
		errno = reason;
		return -1;
	}
	return fd;
}

static void put_length(char *at, size_t length)
{
	at[0] = (char)(length >> 24);
	at[1] = (char)(length >> 16);
	at[2] = (char)(length >> 8);
	at[3] = (char)length;
}

static size_t get_length(const char *at)
{
	const unsigned char *byte = (const unsigned char *)at;

	return (size_t)byte[0] << 24 | (size_t)byte[1] << 16 | (size_t)byte[2] << 8 | byte[3];
}

bool wire_send(int fd, size_t count, const char *const *fields)
{
	char bytes[512];
	size_t length = 4;

	for (size_t i = 0; i < count; i++) {
		size_t size = strlen(fields[i]);

		if (length + size + 1 > sizeof(bytes))
			return false;
		if (i)
			bytes[length++] = 0;
		memcpy(bytes + length, fields[i], size);
		length += size;
	}
	put_length(bytes, length - 4);
	/* A peer that lets its buffer fill up is given up, so that process 1 never waits for it. */
	return send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}

bool wire_write(int fd, const struct frame *frame)
{
	const char *from = frame->start;
	size_t left = (size_t)(frame->end - frame->start);
	char header[4];

	put_length(header, left);
	if (write(fd, header, sizeof(header)) != (ssize_t)sizeof(header))
		return false;
	while (left) {
		ssize_t done = write(fd, from, left);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return false;
		from += done;
		left -= (size_t)done;
	}
	return true;
}

ssize_t inbox_fill(struct inbox *inbox, int fd)
{
	/* One byte stays free: inbox_next() ends the last field with a NUL. */
	ssize_t got = read(fd, inbox->bytes + inbox->filled, sizeof(inbox->bytes) - 1 - inbox->filled);

	if (got > 0)
		inbox->filled += (size_t)got;
	return got;
}

int inbox_next(struct inbox *inbox, struct frame *out)
{
	size_t length;

	if (inbox->taken) {
		inbox->bytes[inbox->taken] = inbox->covered;
		inbox->filled -= inbox->taken;
		memmove(inbox->bytes, inbox->bytes + inbox->taken, inbox->filled);
		inbox->taken = 0;
	}
	if (inbox->filled < 4)
		return 0;
	length = get_length(inbox->bytes);
	if (length > KYB_FRAME_LIMIT)
		return -1;
	if (inbox->filled < 4 + length)
		return 0;
	inbox->taken = 4 + length;
	inbox->covered = inbox->bytes[inbox->taken];
	inbox->bytes[inbox->taken] = 0;
	out->start = inbox->bytes + 4;
	out->end = inbox->bytes + inbox->taken;
	return 1;
}

char *frame_field(struct frame *frame)
{
	char *field = frame->start;

	if (!field)
		return NULL;
	frame->start += strlen(field) + 1;
	if (frame->start > frame->end)
		frame->start = NULL;
	return field;
}
