/* Writes to a file asynchronously and beside the kernel's pages, while another thread reads the same bytes through them.
 * Once a write is complete, a read through the pages must give what it wrote. Exit code 1: it gave older bytes.
 *
 *   stale FILE WRITES
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BLOCK = 64 << 10, BLOCKS = 8, PAGE = 4096 };

static int buffered;
static volatile int done;

/* Brings the pages back that the writes take away. */
static void *read_on(void *unused)
{
	char page[PAGE];

	while (!done)
		for (int at = 0; at < BLOCK * BLOCKS; at += PAGE)
			if (pread(buffered, page, PAGE, at) != PAGE)
				perror("read");
	return unused;
}

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

int main(int argc, char **argv)
{
	aio_context_t context = 0;
	pthread_t reader;
	char *block, *seen = malloc(BLOCK);
	long rounds = 0;
	int direct, stale = 0;

	if (argc != 3)
		return 3;
	direct = open(argv[1], O_RDWR | O_CREAT | O_DIRECT, 0644);
	buffered = open(argv[1], O_RDONLY);
	if (direct < 0 || buffered < 0)
		fail("open");
	if (posix_memalign((void **)&block, PAGE, BLOCK) || syscall(SYS_io_setup, 4, &context))
		fail("setup");
	memset(block, 0, BLOCK);
	for (int i = 0; i < BLOCKS; i++)
		if (pwrite(direct, block, BLOCK, i * BLOCK) != BLOCK)
			fail("write");
	pthread_create(&reader, NULL, read_on, NULL);
	for (long writes = atol(argv[2]); rounds < writes && !stale; rounds++) {
		long at = rounds % BLOCKS * BLOCK;
		struct iocb write = {
			.aio_fildes = direct, .aio_lio_opcode = IOCB_CMD_PWRITE,
			.aio_buf = (unsigned long)block, .aio_nbytes = BLOCK, .aio_offset = at,
		}, *all[] = { &write };
		struct io_event event;

		memset(block, (int)(1 + rounds % 255), BLOCK);
		if (syscall(SYS_io_submit, context, 1, all) != 1)
			fail("submit");
		if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1 || event.res != BLOCK)
			fail("complete");
		if (pread(buffered, seen, BLOCK, at) != BLOCK)
			fail("read");
		stale = memcmp(seen, block, BLOCK) != 0;
	}
	done = 1;
	pthread_join(reader, NULL);
	printf("%ld writes, %s\n", rounds, stale ? "old bytes were read" : "all were read");
	return stale;
}
