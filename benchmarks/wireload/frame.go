package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
)

// Request and response codes.
const (
	codePull        = 11
	codeCreateTopic = 17
	codeMaxOffset   = 30
	codeSend        = 10
	codeSendV2      = 310
	codePop         = 200050
	codeAck         = 200051

	answerOK          = 0
	answerPollTimeout = 210
)

const frameBytesMax = 16 << 20

// appendFrame adds a request: 4 bytes total, 4 bytes header length (type JSON is 0), header, body.
func appendFrame(to []byte, code, opaque int, ext, body []byte) []byte {
	start := len(to)
	to = append(to, 0, 0, 0, 0, 0, 0, 0, 0)
	to = append(to, `{"code":`...)
	to = strconv.AppendInt(to, int64(code), 10)
	to = append(to, `,"extFields":{`...)
	if credentials != nil {
		to = credentials.appendSigned(to, ext, body)
	} else {
		to = append(to, ext...)
	}
	to = append(to, `},"flag":0,"language":"JAVA","opaque":`...)
	to = strconv.AppendInt(to, int64(opaque), 10)
	to = append(to, `,"serializeTypeCurrentRPC":"JSON","version":435}`...)
	headerBytes := len(to) - start - 8
	to = append(to, body...)
	binary.BigEndian.PutUint32(to[start:], uint32(len(to)-start-4))
	binary.BigEndian.PutUint32(to[start+4:], uint32(headerBytes))
	return to
}

// readFrame returns header and body of the next response; the next call with the same buffer overwrites both.
func readFrame(r *bufio.Reader, buffer *[]byte) (header, body []byte, err error) {
	var lengths [8]byte
	if _, err := io.ReadFull(r, lengths[:]); err != nil {
		return nil, nil, err
	}
	total := int(binary.BigEndian.Uint32(lengths[:])) - 4
	headerBytes := int(binary.BigEndian.Uint32(lengths[4:]) & 0xffffff)
	if total < headerBytes || total > frameBytesMax {
		return nil, nil, fmt.Errorf("invalid response: %d bytes with a header of %d bytes", total, headerBytes)
	}
	if cap(*buffer) < total {
		*buffer = make([]byte, total+total/2)
	}
	b := (*buffer)[:total]
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, nil, err
	}
	return b[:headerBytes], b[headerBytes:], nil
}

// field returns a value of a flat JSON header as text, or nil if it is absent. It handles no escaped names or values.
func field(header []byte, key string) []byte {
	quoted := `"` + key + `":`
	i := bytes.Index(header, []byte(quoted))
	if i < 0 {
		return nil
	}
	rest := header[i+len(quoted):]
	if len(rest) > 0 && rest[0] == '"' {
		if end := bytes.IndexByte(rest[1:], '"'); end >= 0 {
			return rest[1 : 1+end]
		}
		return nil
	}
	if end := bytes.IndexAny(rest, ",}"); end >= 0 {
		return bytes.TrimSpace(rest[:end])
	}
	return nil
}

func number(header []byte, key string) (int64, bool) {
	n, err := strconv.ParseInt(string(field(header, key)), 10, 64)
	return n, err == nil
}

// ext encodes extFields from alternating keys and values.
func ext(pairs ...string) []byte {
	var text []byte
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, `"`+pairs[i]+`":"`+pairs[i+1]+`"`...)
	}
	return text
}
