package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"hash"
	"sort"
	"strconv"
	"sync"
)

// signer adds AccessKey and Signature to requests, as Apache's clients do. The signature is the HMAC-SHA1 of the values
// of all header fields, ordered by name, and the body.
type signer struct {
	accessKey string
	works     sync.Pool // *signing
}

// signing holds reusable buffers for one signature at a time.
type signing struct {
	mac    hash.Hash
	fields [][2][]byte
	value  []byte
	ext    []byte
	sum    []byte
}

// credentials signs every request of this process; nil: requests are not signed.
var credentials *signer

func newSigner(accessKey, secret string) *signer {
	s := &signer{accessKey: accessKey}
	s.works.New = func() any { return &signing{mac: hmac.New(sha1.New, []byte(secret))} }
	return s
}

// appendSigned adds the header fields in ext, the access key and the signature.
func (s *signer) appendSigned(to, ext, body []byte) []byte {
	w := s.works.Get().(*signing)
	defer s.works.Put(w)
	w.ext = append(w.ext[:0], ext...)
	if len(ext) > 0 {
		w.ext = append(w.ext, ',')
	}
	w.ext = append(append(append(w.ext, `"AccessKey":"`...), s.accessKey...), '"')
	w.split()
	sort.Slice(w.fields, func(i, j int) bool { return bytes.Compare(w.fields[i][0], w.fields[j][0]) < 0 })
	w.mac.Reset()
	for _, field := range w.fields {
		w.mac.Write(w.unescaped(field[1]))
	}
	w.mac.Write(body)
	w.sum = w.mac.Sum(w.sum[:0])
	to = append(append(to, w.ext...), `,"Signature":"`...)
	return append(base64.StdEncoding.AppendEncode(to, w.sum), '"')
}

// split finds names and values in `"name":"value",...`, as encoded by ext and message.
func (w *signing) split() {
	w.fields = w.fields[:0]
	for rest := w.ext; len(rest) > 0; {
		name := bytes.IndexByte(rest[1:], '"') + 1
		value := rest[name+3:]
		end := bytes.IndexByte(value, '"')
		w.fields = append(w.fields, [2][]byte{rest[1:name], value[:end]})
		rest = bytes.TrimPrefix(value[end+1:], []byte{','})
	}
}

// unescaped replaces \u00XX, the only escape that wireload writes.
func (w *signing) unescaped(text []byte) []byte {
	at := bytes.IndexByte(text, '\\')
	if at < 0 {
		return text
	}
	w.value = w.value[:0]
	for ; at >= 0; at = bytes.IndexByte(text, '\\') {
		code, _ := strconv.ParseUint(string(text[at+2:at+6]), 16, 8)
		w.value = append(append(w.value, text[:at]...), byte(code))
		text = text[at+6:]
	}
	w.value = append(w.value, text...)
	return w.value
}
