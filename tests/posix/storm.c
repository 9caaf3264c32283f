/* Six processes rename, stat and list directories that are moved into each other, for some seconds. Ends when all are
 * done: if a request is never answered, it never does (run it under timeout(1)). Exit code 1: an error that no rename,
 * stat or listing may give.
 *
 *   storm DIRECTORY SECONDS
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOVERS = 3, READERS = 3, NAMES = 15 };

static char names[NAMES][8];

/* All paths of up to three different directories. */
static void make_names(void)
{
	static const char letters[] = "abc";
	int count = 0;

	for (int i = 0; i < 3; i++) {
		snprintf(names[count++], sizeof names[0], "%c", letters[i]);
		for (int j = 0; j < 3; j++) {
			if (j == i)
				continue;
			snprintf(names[count++], sizeof names[0], "%c/%c", letters[i], letters[j]);
			snprintf(names[count++], sizeof names[0], "%c/%c/%c", letters[i], letters[j], letters[3 - i - j]);
		}
	}
}

static const char *any_name(unsigned *seed)
{
	return names[rand_r(seed) % NAMES];
}

/* What happens to who is too late. */
static int is_allowed(int error)
{
	return error == ENOENT || error == EEXIST || error == EINVAL || error == ENOTEMPTY;
}

static void check(const char *what, const char *name, int failed)
{
	if (failed && !is_allowed(errno)) {
		fprintf(stderr, "%s %s: %s\n", what, name, strerror(errno));
		exit(1);
	}
}

static void move(unsigned *seed)
{
	const char *from = any_name(seed), *to = any_name(seed);

	check("rename", from, renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE));
}

static void read_one(unsigned *seed)
{
	const char *name = any_name(seed);
	struct dirent *entry;
	struct stat stat_of;
	DIR *dir;

	check("stat", name, stat(name, &stat_of));
	dir = opendir(name);
	check("open", name, !dir);
	if (!dir)
		return;
	while ((entry = readdir(dir)))
		check("stat", entry->d_name, fstatat(dirfd(dir), entry->d_name, &stat_of, 0));
	closedir(dir);
}

int main(int argc, char **argv)
{
	int failed = 0, status;

	if (argc != 3 || chdir(argv[1])) {
		fprintf(stderr, "usage: storm DIRECTORY SECONDS\n");
		return 3;
	}
	make_names();
	for (int i = 0; i < 3; i++)
		if (mkdir((char[]){"abc"[i], 0}, 0755) && errno != EEXIST)
			return perror("mkdir"), 1;
	for (int i = 0; i < MOVERS + READERS; i++) {
		if (fork())
			continue;
		time_t end = time(NULL) + atoi(argv[2]);
		unsigned seed = i;
		while (time(NULL) < end)
			i < MOVERS ? move(&seed) : read_one(&seed);
		exit(0);
	}
	while (wait(&status) > 0)
		failed |= status != 0;
	return failed;
}
