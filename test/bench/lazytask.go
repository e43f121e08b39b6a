package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

func newClient(streams int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams, DisableCompression: true}}
}

// rangeSize is the size of the ranges in which a file is fetched.
const rangeSize = 4 << 20

// fetchRanges fetches ranges over 8 connections and passes each to keep, concurrently.
func fetchRanges(url string, size int64, keep func(p []byte, off int64) error) error {
	const streams = 8
	client := newClient(streams)
	buffers := make(chan []byte, streams)
	for range streams {
		buffers <- make([]byte, rangeSize)
	}
	g, ctx := errgroup.WithContext(context.Background())
	for off := int64(0); off < size && ctx.Err() == nil; off += rangeSize {
		buf := <-buffers
		g.Go(func() error {
			defer func() { buffers <- buf }()
			p := buf[:min(rangeSize, size-off)]
			if err := getRange(client, url, p, off); err != nil {
				return err
			}
			return keep(p, off)
		})
	}
	return g.Wait()
}

// fetchEach fetches blobs over 8 connections, each with one request, hashes each, writes it to its own
// file in dir, and finally makes all of them durable. list is a file with the length and the URL of a
// blob on each line.
func fetchEach(list, dir string) error {
	lines, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	if dir, err = os.MkdirTemp(dir, "each"); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	const streams = 8
	client := newClient(streams)
	var g errgroup.Group
	g.SetLimit(streams)
	for i, line := range strings.Split(strings.TrimSpace(string(lines)), "\n") {
		length, url, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(length)
		if err != nil {
			return err
		}
		g.Go(func() error {
			p := make([]byte, n)
			if err := getRange(client, url, p, 0); err != nil {
				return err
			}
			sha256.Sum256(p)
			return os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), p, 0o644)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// download fetches a file and discards it.
func download(url, length string) error {
	size, err := strconv.ParseInt(length, 10, 64)
	if err != nil {
		return err
	}
	return fetchRanges(url, size, func([]byte, int64) error { return nil })
}

// readHead reads the first bytes of a file.
func readHead(name, length string) error { return copyHead(name, os.DevNull, length) }

func copyHead(from, to, length string) error {
	n, err := strconv.ParseInt(length, 10, 64)
	if err != nil {
		return err
	}
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(r, n), make([]byte, 1<<20))
	if to == os.DevNull {
		return errors.Join(err, w.Close())
	}
	return errors.Join(err, w.Sync(), w.Close())
}

// randomReads is the number of random page reads.
const randomReads = 5000

// random reads random pages in the first bytes of a file that are not in its page cache, and prints the
// median and the 99th percentile of their times. How is "warm" if files below it may be cached.
func random(name, length, how string) error {
	n, err := strconv.ParseInt(length, 10, 64)
	if err != nil {
		return err
	}
	if how == "warm" {
		if err := readHead(name, length); err != nil {
			return err
		}
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if how == "warm" {
		// This also empties the cache of a file on a local file system, the control for both.
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return err
		}
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		return err
	}
	var times series
	p := make([]byte, 4<<10)
	for range randomReads {
		off := rand.Int64N(n/int64(len(p))) * int64(len(p))
		start := time.Now()
		if _, err := f.ReadAt(p, off); err != nil {
			return err
		}
		times.add(time.Since(start))
	}
	fmt.Println(times.percentile(50), times.percentile(99))
	return nil
}

// readAll reads the files of a directory with many readers: one for each file, or each a part of the
// only file.
func readAll(dir, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(names) == 0 {
		return errors.Join(fmt.Errorf("%s has no files", dir), err)
	}
	var g errgroup.Group
	for i := range n {
		g.Go(func() error {
			f, err := os.Open(names[i%len(names)])
			if err != nil {
				return err
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return err
			}
			per := int64(n / len(names)) // readers of the file
			part := info.Size() / per
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.NewSectionReader(f, int64(i/len(names))*part, part), make([]byte, 256<<10))
			return err
		})
	}
	return g.Wait()
}
