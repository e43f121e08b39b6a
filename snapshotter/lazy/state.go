package lazy

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// Limits of the state. Both are far above the usual number of lazy files of a node.
const (
	maxNodes   = 1 << 20 // × nodeSlot = 64 MiB
	maxHandles = 1 << 18 // × handleSlot = 8 MiB
)

// Names of limits.
const (
	LimitNodes   = "lazy_nodes"
	LimitHandles = "lazy_handles"
)

// Sizes of slots in bytes. They divide the page size, so that a slot is within one page.
const (
	nodeSlot   = 64
	handleSlot = 32
)

// maxRecord limits the size of mount.json, in bytes.
const maxRecord = 64 << 10

// namePrefix is the prefix of the names of kept connections.
const namePrefix = "ballast-lazy-"

const (
	recordFile  = "mount.json"
	nodesFile   = "nodes"
	handlesFile = "handles"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A record describes a mount to the successive processes that serve it.
type record struct {
	Version int    `json:"version"`        // recordVersion
	ID      string `json:"id"`             // 16 random hex digits
	Dir     string `json:"dir"`            // the mount point
	Home    string `json:"home,omitempty"` // Options.Dir, if it is not the mount point; differs in a copied state
	Dev     string `json:"dev"`            // major:minor, as in mountinfo
	Init    []byte `json:"init"`           // the kernel's INIT message
	// What the kernel and the first process agreed on.
	Passthrough bool `json:"passthrough"`
	Resend      bool `json:"resend"`
	NoIDMap     bool `json:"noIDMap,omitempty"` // refused although the kernel offered it
}

const recordVersion = 1

func (r *record) name() string { return namePrefix + r.ID }

// readRecord reads the record. It returns errdefs.ErrNotFound if there is none.
func readRecord(dir string) (*record, error) {
	p, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no mount is recorded: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	var r record
	if len(p) > maxRecord {
		return nil, fmt.Errorf("%s has %d bytes: %w", recordFile, len(p), errdefs.ErrDataLoss)
	}
	if err := json.Unmarshal(p, &r); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", recordFile, err, errdefs.ErrDataLoss)
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("%s has version %d, want %d: %w", recordFile, r.Version, recordVersion, errdefs.ErrNotImplemented)
	}
	if len(r.ID) != 16 || strings.Trim(r.ID, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("%s has id %q: %w", recordFile, r.ID, errdefs.ErrDataLoss)
	}
	return &r, nil
}

// sinceBoot reports whether the record was written since the machine started, so that the mount may exist.
func sinceBoot(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, recordFile))
	var now unix.Timespec
	if err := errors.Join(err, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)); err != nil {
		return false
	}
	return time.Since(info.ModTime()) < time.Duration(now.Nano())
}

// state is the record with the open files of slots.
type state struct {
	dir            string
	rec            *record
	nodes, handles *os.File
}

// createState replaces the state of an earlier mount. The record is written last: without it there
// is no state.
func createState(dir string, rec *record) (_ *state, err error) {
	if err := removeState(dir); err != nil {
		return nil, err
	}
	s := &state{dir: dir, rec: rec}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	if s.nodes, err = os.OpenFile(filepath.Join(dir, nodesFile), flags, 0o600); err != nil {
		return nil, err
	}
	if s.handles, err = os.OpenFile(filepath.Join(dir, handlesFile), flags, 0o600); err != nil {
		return nil, err
	}
	if _, err = s.nodes.WriteAt(header(rec, nodeSlot), 0); err != nil {
		return nil, err
	}
	if _, err = s.handles.WriteAt(header(rec, handleSlot), 0); err != nil {
		return nil, err
	}
	return s, rec.save(dir)
}

// save writes the record, replacing an earlier one.
func (r *record) save(dir string) error {
	p, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordFile)
	if err := os.WriteFile(path+".new", p, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// openState opens the files of the mount that rec describes.
func openState(dir string, rec *record) (_ *state, err error) {
	s := &state{dir: dir, rec: rec}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	open := func(name string, slot int, limit int64) (*os.File, error) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		head := make([]byte, slot)
		if _, err := f.ReadAt(head, 0); err != nil || !bytes.Equal(head, header(rec, slot)) {
			return f, fmt.Errorf("%s does not belong to mount %s: %w", name, rec.ID, errdefs.ErrDataLoss)
		}
		if info, err := f.Stat(); err != nil || info.Size() > (limit+1)*int64(slot) {
			return f, errors.Join(fmt.Errorf("%s is too large: %w", name, errdefs.ErrDataLoss), err)
		}
		return f, nil
	}
	if s.nodes, err = open(nodesFile, nodeSlot, maxNodes); err != nil {
		return nil, err
	}
	s.handles, err = open(handlesFile, handleSlot, maxHandles)
	return s, err
}

// header returns the first slot of a file.
func header(rec *record, slot int) []byte {
	return append([]byte("ballast1"+rec.ID), make([]byte, slot)...)[:slot]
}

// removeState removes the state of a mount, the record first.
func removeState(dir string) error {
	for _, name := range []string{recordFile, nodesFile, handlesFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *state) close() error {
	var errs []error
	for _, f := range []*os.File{s.nodes, s.handles} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// saveNode writes the slot of a node.
func (s *state) saveNode(n *node) error {
	var p [nodeSlot]byte
	binary.LittleEndian.PutUint64(p[0:], n.id)
	if _, err := hex.Decode(p[8:40], []byte(n.digest.Encoded())); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(p[40:], uint64(n.size))
	binary.LittleEndian.PutUint64(p[52:], n.view)
	binary.LittleEndian.PutUint32(p[48:], nodeSum(p[:]))
	_, err := s.nodes.WriteAt(p[:], (n.slot+1)*nodeSlot)
	return err
}

// nodeSum returns the checksum of a slot.
func nodeSum(p []byte) uint32 {
	return crc32.Update(crc32.Checksum(p[:48], castagnoli), castagnoli, p[52:60])
}

// clearNode makes a slot equal to one that was never written.
func (s *state) clearNode(slot int64) error {
	_, err := s.nodes.WriteAt(make([]byte, nodeSlot), (slot+1)*nodeSlot)
	return err
}

// loadNodes calls f for every saved node and returns the number of slots in use. It skips slots
// that were reserved but never written.
func (s *state) loadNodes(f func(*node)) (int64, error) {
	p, err := os.ReadFile(s.nodes.Name())
	if err != nil {
		return 0, err
	}
	slots := int64(len(p)) / nodeSlot
	for i := int64(1); i < slots; i++ {
		q := p[i*nodeSlot : (i+1)*nodeSlot]
		if binary.LittleEndian.Uint32(q[48:]) != nodeSum(q) {
			continue
		}
		n := &node{
			id:     binary.LittleEndian.Uint64(q[0:]),
			digest: digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(q[8:40])),
			size:   int64(binary.LittleEndian.Uint64(q[40:])),
			view:   binary.LittleEndian.Uint64(q[52:]),
			slot:   i - 1,
		}
		n.saved.Store(true)
		f(n)
	}
	return max(slots-1, 0), nil
}

// Modes of a handle.
const (
	modeFree        = 0
	modeCached      = 1
	modePassthrough = 2
)

// A handle is an open file. The lower half of fh is the slot, the upper half counts the uses of the
// slot, so that a repeated RELEASE does no harm.
type handle struct {
	fh, node, unique uint64 // unique is the id of the OPEN request
	backing          int32
	mode             uint32
}

func (s *state) saveHandle(h handle) error {
	var p [handleSlot]byte
	binary.LittleEndian.PutUint64(p[0:], h.fh)
	binary.LittleEndian.PutUint64(p[8:], h.node)
	binary.LittleEndian.PutUint64(p[16:], h.unique)
	binary.LittleEndian.PutUint32(p[24:], uint32(h.backing))
	binary.LittleEndian.PutUint32(p[28:], h.mode)
	_, err := s.handles.WriteAt(p[:], (int64(uint32(h.fh))+1)*handleSlot)
	return err
}

// loadHandles returns all slots, including free ones.
func (s *state) loadHandles() ([]handle, error) {
	p, err := os.ReadFile(s.handles.Name())
	if err != nil {
		return nil, err
	}
	var hs []handle
	for i := handleSlot; i+handleSlot <= len(p); i += handleSlot {
		q := p[i : i+handleSlot]
		h := handle{
			fh:      binary.LittleEndian.Uint64(q[0:]),
			node:    binary.LittleEndian.Uint64(q[8:]),
			unique:  binary.LittleEndian.Uint64(q[16:]),
			backing: int32(binary.LittleEndian.Uint32(q[24:])),
			mode:    binary.LittleEndian.Uint32(q[28:]),
		}
		if uint32(h.fh) != uint32(len(hs)) { // reserved, never written
			h = handle{fh: uint64(len(hs))}
		}
		hs = append(hs, h)
	}
	return hs, nil
}
