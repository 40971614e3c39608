package main

import (
	"strconv"
	"strings"
)

const (
	suspendMs   = 15_000
	sysSuspend  = 2
	sysCommit   = 1
	retryPrefix = "%RETRY%"
)

// member is a consumer.
type member struct {
	*client
	o      *options
	group  string
	queues []queue // by opaque
	out    []byte
}

// queue is what a member pulls.
type queue struct {
	fields string // of each pull
	topic  string
	id     int
	offset int64
}

// connectMembers connects the consumers; consumer i belongs to group i modulo groups.
func connectMembers(o *options, all *counts) ([]*member, error) {
	members := make([]*member, o.conns-o.producers)
	err := together(len(members), func(i int) error {
		c, err := connect(o, all)
		if err != nil {
			return err
		}
		group := i % o.groups
		m := &member{client: c, o: o, group: groupName(o, group)}
		m.heartbeat = m.subscribe(i, group)
		m.assign(i, group, len(members))
		members[i] = m
		return m.register()
	})
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		all.pulling.Add(int64(len(m.queues)))
		go m.run()
	}
	return members, nil
}

// subscribe returns the heartbeat.
func (m *member) subscribe(i, group int) []byte {
	var topics []string
	for topic := group; topic < m.o.topics; topic += m.o.groups {
		topics = append(topics, subscription(topicName(m.o, topic)))
	}
	topics = append(topics, subscription(retryPrefix+m.group))
	return heartbeatFrame(`{"clientID":"consumer-` + pad(i) + `","producerDataSet":[],"consumerDataSet":[{"groupName":"` +
		m.group + `","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",` +
		`"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","unitMode":false,"subscriptionDataSet":[` +
		strings.Join(topics, ",") + `]}]}`)
}

func subscription(topic string) string {
	return `{"topic":"` + topic + `","subString":"*","expressionType":"TAG","tagsSet":[],"codeSet":[],` +
		`"classFilterMode":false,"subVersion":1}`
}

// assign divides the queues of each topic of the group evenly, in the order of the members.
func (m *member) assign(i, group, consumers int) {
	rank, size := i/m.o.groups, (consumers-group-1)/m.o.groups+1
	for topic := group; topic < m.o.topics; topic += m.o.groups {
		for id := m.o.queues * rank / size; id < m.o.queues*(rank+1)/size; id++ {
			m.add(topicName(m.o, topic), id)
		}
	}
	if rank == 0 {
		m.add(retryPrefix+m.group, 0)
	}
}

func (m *member) add(topic string, id int) {
	fields := string(ext("consumerGroup", m.group, "topic", topic, "queueId", strconv.Itoa(id), "maxMsgNums",
		strconv.Itoa(m.o.batch), "suspendTimeoutMillis", strconv.Itoa(suspendMs), "subVersion", "1", "expressionType", "TAG"))
	m.queues = append(m.queues, queue{fields: fields, topic: topic, id: id})
}

// run pulls all queues until the connection is lost.
func (m *member) run() {
	for i := range m.queues {
		m.pull(i)
	}
	for {
		if len(m.out) > 0 && m.in.Buffered() == 0 {
			m.write(m.out)
			m.out = m.out[:0]
		}
		header, body, err := readFrame(m.in, &m.buffer)
		if err != nil {
			m.all.failed("consumer: " + err.Error())
			return
		}
		m.handle(header, body)
	}
}

func (m *member) handle(header, body []byte) {
	if isRequest(header) {
		m.all.notifications.Add(1)
		m.askMembers()
		return
	}
	code, _ := number(header, "code")
	opaque, _ := number(header, "opaque")
	if opaque >= otherOpaque {
		if code != answerOK {
			m.all.failed(string(header))
		}
		return
	}
	m.all.pulls.Add(1)
	q := &m.queues[opaque]
	if next, exists := number(header, "nextBeginOffset"); exists {
		q.offset = next
	} else {
		m.all.failed(string(header))
	}
	if code == answerOK {
		m.all.take(body)
	} else {
		m.all.emptyPulls.Add(1)
	}
	m.pull(int(opaque))
}

// pull adds the next pull of a queue to what is written.
func (m *member) pull(i int) {
	q := &m.queues[i]
	flag := sysSuspend
	if q.offset > 0 {
		flag |= sysCommit
	}
	offset := strconv.FormatInt(q.offset, 10)
	fields := append([]byte(q.fields), `,"queueOffset":"`+offset+`","commitOffset":"`+offset+`","sysFlag":"`...)
	fields = append(strconv.AppendInt(fields, int64(flag), 10), '"')
	m.out = appendFrame(m.out, codePull, i, fields, nil)
}

func (m *member) askMembers() {
	m.write(appendFrame(nil, codeMembers, otherOpaque, ext("consumerGroup", m.group), nil))
}

// commit sends the offsets of all queues.
func (m *member) commit() {
	var out []byte
	for i := range m.queues {
		q := &m.queues[i]
		start := len(out)
		out = appendFrame(out, codeCommit, otherOpaque, ext("consumerGroup", m.group, "topic", q.topic, "queueId",
			strconv.Itoa(q.id), "commitOffset", strconv.FormatInt(q.offset, 10)), nil)
		out = oneway(out, start)
		m.all.commits.Add(1)
	}
	m.write(out)
}

// keepMembers sends the periodic requests of the consumers.
func keepMembers(members []*member) {
	go regularly(len(members), heartbeatEvery, func(i int) {
		members[i].write(members[i].heartbeat)
		members[i].all.heartbeats.Add(1)
	})
	go regularly(len(members), commitEvery, func(i int) { members[i].commit() })
	go regularly(len(members), membersEvery, func(i int) { members[i].askMembers() })
}
