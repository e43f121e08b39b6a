package lazy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Operations handled here, or with answers of unusual size.
// https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/fuse.h
const (
	opLookup      = 1
	opForget      = 2
	opGetAttr     = 3
	opOpen        = 14
	opRead        = 15
	opStatFs      = 17
	opRelease     = 18
	opFlush       = 25
	opInit        = 26
	opOpenDir     = 27
	opReadDir     = 28
	opReleaseDir  = 29
	opAccess      = 34
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
)

// Sizes of the protocol, in bytes.
const (
	inHeader   = 40
	outHeader  = 16
	readInSize = inHeader + 40
	maxAnswer  = outHeader + 288 // largest answer without data
	maxRead    = 1 << 20         // 1 MiB, the largest read request: 256 pages
	// The kernel requires room for a write of the largest size.
	requestBuffer = maxRead + 4096
)

// readers is the number of goroutines that wait for requests.
const readers = 2

// A connection serves requests.
type connection struct {
	fs      *fileSystem
	file    *os.File
	raw     syscall.RawConn
	proto   *fuse.ProtocolServer
	log     *slog.Logger
	serving sync.WaitGroup
	done    chan struct{} // closed when serving has ended
}

// protocolOptions returns the options of the protocol that the kernel gets.
func protocolOptions(log *slog.Logger) *fuse.MountOptions {
	return &fuse.MountOptions{
		MaxWrite:                 maxRead,
		MaxBackground:            maxBackground,
		MaxStackDepth:            1, // with 2, overlayfs could not use the mount as a layer
		ExplicitDataCacheControl: true,
		DisableXAttrs:            true,
		DisableReadDirPlus:       true,
		IDMappedMount:            true,
		Name:                     "ballast",
		Logger:                   slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// maxBackground limits the read-ahead requests in flight. Each waiting stream has ReadAhead / 1 MiB
// of them; those of a slow model must not stop others.
const maxBackground = 256

// newConnection prepares serving: it feeds the saved INIT message to the protocol code.
func newConnection(fs *fileSystem, f *os.File, log *slog.Logger) (*connection, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &connection{fs: fs, file: f, raw: raw, log: log, done: make(chan struct{})}
	c.proto = fuse.NewProtocolServer(fs, protocolOptions(log))
	fs.device = &device{raw}
	out := make([]byte, maxAnswer)
	if _, status := c.proto.HandleRequest([][]byte{fs.state.rec.Init}, [][]byte{out}); !status.Ok() {
		return nil, fmt.Errorf("saved INIT message: %w", syscall.Errno(status))
	}
	return c, nil
}

// start begins to serve.
func (c *connection) start() {
	c.serving.Add(readers)
	for range readers {
		go c.loop()
	}
	go func() {
		c.serving.Wait()
		close(c.done)
	}()
}

// stop ends serving. Requests already read are answered, except reads that wait for the Source: the
// next process serves those.
func (c *connection) stop() error {
	if err := c.file.SetReadDeadline(time.Unix(1, 0)); err != nil { // unblocks the readers
		return err // the readers may still be blocked: do not wait for them
	}
	<-c.done
	return nil
}

func (c *connection) close() error { return c.file.Close() }

// loop reads requests until the connection ends.
func (c *connection) loop() {
	defer c.serving.Done()
	buf := make([]byte, requestBuffer)
	for !c.fs.closing.Load() {
		n, err := readRequest(c.raw, buf)
		switch {
		case errors.Is(err, unix.ENOENT): // interrupted in the meantime
			continue
		case err != nil:
			if !c.fs.closing.Load() {
				c.log.Error("lazy mount is no longer served", "err", err)
			}
			return
		case n < inHeader:
			c.log.Error("kernel request is too short", "bytes", n)
			continue
		}
		switch in := buf[:n]; opcode(in) {
		case opForget, opBatchForget, opInterrupt, opRelease:
			c.serve(in)
		default:
			c.serving.Add(1)
			go func(in []byte) {
				defer c.serving.Done()
				c.serve(in)
			}(append([]byte(nil), in...))
		}
	}
}

func opcode(in []byte) uint32 { return binary.NativeEndian.Uint32(in[4:]) }
func unique(in []byte) uint64 { return binary.NativeEndian.Uint64(in[8:]) }

// readRequest waits for a request. The connection is non-blocking, so that closing it unblocks
// readers.
func readRequest(raw syscall.RawConn, buf []byte) (n int, err error) {
	werr := raw.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), buf)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if werr == nil {
		return n, err
	}
	if errors.Is(werr, os.ErrDeadlineExceeded) || errors.Is(werr, os.ErrClosed) {
		return 0, werr
	}
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }); cerr == nil && err != unix.EAGAIN {
		return n, err // more precise than the poller's error
	}
	return 0, werr
}

// serve answers one request.
func (c *connection) serve(in []byte) {
	op := opcode(in)
	switch op {
	case opLookup, opForget, opGetAttr, opOpen, opStatFs, opRelease, opFlush, opOpenDir, opReleaseDir,
		opAccess, opInterrupt, opDestroy, opBatchForget:
		c.answer(in, nil)
	case opRead, opReadDir:
		size := 0
		if len(in) >= readInSize {
			size = int(binary.NativeEndian.Uint32(in[inHeader+16:]))
		}
		if size > maxRead {
			c.refuse(in, unix.EINVAL)
			return
		}
		c.answer(in, unwritten[:size])
	default: // not needed to read files
		c.refuse(in, unix.ENOSYS)
	}
}

// unwritten is the data buffer given to the protocol code. It is never written: directories are
// empty, and fileSystem.Read sends bytes of files itself, so that waiting reads need no memory.
var unwritten [maxRead]byte

// answer lets the protocol code answer a request. It passes data as the buffer, which stays
// unchanged.
func (c *connection) answer(in, data []byte) {
	head := make([]byte, maxAnswer)
	out := [][]byte{head}
	if data != nil {
		out = [][]byte{head[:outHeader], data}
	}
	n, status := c.proto.HandleRequest([][]byte{in}, out)
	if n == 0 {
		if !status.Ok() {
			c.refuse(in, syscall.Errno(status))
		}
		return
	}
	if c.fs.closing.Load() && opcode(in) == opRead && -int32(binary.NativeEndian.Uint32(head[4:])) == int32(unix.EINTR) {
		if c.fs.state.rec.Resend {
			return // the kernel sends it again to the next process
		}
		c.refuse(in, unix.EIO)
		return
	}
	if data != nil && n > outHeader {
		return // sent
	}
	if err := c.write(head[:n]); err == nil || n < outHeader+8 {
		return
	}
	switch first := binary.NativeEndian.Uint64(head[outHeader:]); opcode(in) {
	case opOpen: // the opening process was killed: there is no RELEASE
		c.fs.release(first)
	case opLookup:
		c.fs.Forget(first, 1)
	}
}

// refuse answers a request with an error.
func (c *connection) refuse(in []byte, errno syscall.Errno) {
	_ = c.write(notice(-int32(errno), unique(in))) // if it fails, the request was interrupted
}

// notice returns a message without data.
func notice(code int32, unique uint64) []byte {
	p := make([]byte, outHeader)
	binary.NativeEndian.PutUint32(p[0:], outHeader)
	binary.NativeEndian.PutUint32(p[4:], uint32(code))
	binary.NativeEndian.PutUint64(p[8:], unique)
	return p
}

// resend asks the kernel to send unanswered requests again.
func (c *connection) resend() error { return resend(c.raw) }

func (c *connection) write(p []byte) error { return write(c.raw, p) }

// write sends a message. It can be called concurrently.
func write(raw syscall.RawConn, iov ...[]byte) (err error) {
	cerr := raw.Control(func(fd uintptr) {
		for {
			if _, err = unix.Writev(int(fd), iov); err != unix.EINTR {
				return
			}
		}
	})
	return errors.Join(cerr, err)
}

// resend sends FUSE_NOTIFY_RESEND.
func resend(raw syscall.RawConn) error { return write(raw, notice(7, 0)) }

// A device sends bytes of files and registers objects for passthrough.
type device struct{ raw syscall.RawConn }

// send answers a read with data.
func (d *device) send(unique uint64, data []byte) error {
	head := notice(0, unique)
	binary.NativeEndian.PutUint32(head, uint32(outHeader+len(data)))
	return write(d.raw, head, data)
}
