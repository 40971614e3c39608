package main

import (
	"encoding/binary"
	"errors"
	"time"
)

// Layout of a stored message: 4 size, 4 magic, 4 CRC, 4 queue, 4 flag, 8 queue offset, 8 physical offset, 4 system flag, 8 born
// time, host, 8 store time, host, 4 retries, 8 prepared offset, 4 body size, body, 1 topic size, topic, 2 properties
// size, properties. A host has 8 bytes, or 20 for IPv6.
const (
	atSysFlag     = 36
	atHosts       = 48
	hostBytes     = 8
	hostV6Extra   = 12
	bornHostV6    = 1 << 4
	storeHostV6   = 1 << 5
	recordMinimum = 91
)

var errRecord = errors.New("a record that does not hold together")

type record struct {
	seq, due, storeMs int64
	body, properties  []byte
}

// nextRecord splits off the first record.
func nextRecord(b []byte) (record, []byte, error) {
	if len(b) < recordMinimum {
		return record{}, nil, errRecord
	}
	size := int(binary.BigEndian.Uint32(b))
	if size < recordMinimum || size > len(b) {
		return record{}, nil, errRecord
	}
	flags := binary.BigEndian.Uint32(b[atSysFlag:])
	at := atHosts + hostBytes
	if flags&bornHostV6 != 0 {
		at += hostV6Extra
	}
	storeMs := int64(binary.BigEndian.Uint64(b[at:]))
	at += 8 + hostBytes
	if flags&storeHostV6 != 0 {
		at += hostV6Extra
	}
	at += 4 + 8
	bodyBytes := int(binary.BigEndian.Uint32(b[at:]))
	at += 4
	if bodyBytes < stampBytes || at+bodyBytes > size {
		return record{}, nil, errRecord
	}
	body := b[at : at+bodyBytes]
	at += bodyBytes
	if at >= size || at+1+int(b[at])+2 > size { // records with a 2-byte topic length are not supported
		return record{}, nil, errRecord
	}
	at += 1 + int(b[at])
	propertiesBytes := int(binary.BigEndian.Uint16(b[at:]))
	at += 2
	if at+propertiesBytes > size {
		return record{}, nil, errRecord
	}
	return record{
		seq: int64(binary.BigEndian.Uint64(body)), due: int64(binary.BigEndian.Uint64(body[8:])),
		storeMs: storeMs, body: body, properties: b[at : at+propertiesBytes],
	}, b[size:], nil
}

// take checks and counts the messages of one response.
func (t *tally) take(records []byte) {
	nowMs := time.Now().UnixMilli()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	for len(records) > 0 {
		record, rest, err := nextRecord(records)
		if err != nil {
			t.report.Corrupt++
			return
		}
		records = rest
		t.judge(record.body, record.storeMs, nowMs)
	}
}
