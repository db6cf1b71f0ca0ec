//! A disk that is slow to sync or fails to, for one process: a small library, compiled here and loaded before the
//! system's (LD_PRELOAD), stands before `fdatasync` and `fsync` and obeys a file. It touches nothing but the election
//! store (`consensus.redb`), so that what a test sees is the election's own doing.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{World, node::Setup};

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int fault(int fd) {
    const char *orders = getenv("CHECKS_DISK");
    char link[64], path[4096], word[16];
    long ms = 0;
    if (!orders) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (!strstr(path, "consensus.redb")) return 0;
    FILE *file = fopen(orders, "re");
    if (!file) return 0;
    int read = fscanf(file, "%15s %ld", word, &ms);
    fclose(file);
    if (read < 1) return 0;
    if (!strcmp(word, "fail")) { errno = EIO; return -1; }
    struct timespec time = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&time, NULL);
    return 0;
}

int fdatasync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return fault(fd) ? -1 : next(fd);
}

int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return fault(fd) ? -1 : next(fd);
}
"#;

/// What orders a world's disk.
#[derive(Clone, Debug)]
pub struct Disk {
    orders: PathBuf,
}

impl Disk {
    /// A disk that does as it should until it is told otherwise, and the setup of the node that has it.
    ///
    /// # Panics
    /// When there is no C compiler.
    #[must_use]
    pub fn of(world: &World, setup: Setup) -> (Self, Setup) {
        let folder = world.folder("disk");
        let (source, library) = (folder.join("disk.c"), folder.join("disk.so"));
        world.put(&source, SOURCE);
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .expect("cc is installed: Rust needs it too");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let disk = Self::at(world);
        let setup = setup.env("LD_PRELOAD", library.display()).env("CHECKS_DISK", disk.orders.display());
        (disk, setup)
    }

    /// The disk of a world that has one.
    #[must_use]
    pub fn at(world: &World) -> Self {
        Self { orders: world.root().join("disk/orders") }
    }

    /// Each sync takes so much longer from now on.
    pub fn slow(&self, world: &World, by: Duration) {
        self.order(world, &format!("slow {}\n", by.as_millis()));
    }

    /// Each sync fails with an I/O error from now on.
    pub fn fail(&self, world: &World) {
        self.order(world, "fail 0\n");
    }

    /// The disk is well again.
    pub fn heal(&self) {
        let _ = std::fs::remove_file(&self.orders);
    }

    /// In one step, since the node may read it at any time.
    fn order(&self, world: &World, text: &str) {
        let staged: &Path = &self.orders.with_extension("staged");
        world.put(staged, text);
        std::fs::rename(staged, &self.orders).expect("in the same folder");
    }
}
