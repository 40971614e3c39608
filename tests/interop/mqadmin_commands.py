"""Every command of mqadmin 5.3.3, in an executable order, and the expected output for our broker.

`{broker}`, `{namesrv}`, `{name}`, `{cluster}`, `{home}` and `{id}` are replaced; `-n` is added.
docs/compat.md has one row for each command (`tests/docs/test_mqadmin_table.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

SHORT_MS: Final = 5_000  # for commands without an end; less than their interval
TRACK: Final = (
    r"MessageTrack \[consumerGroup=admin-topic,|See https://rocketmq.apache.org/docs/bestPractice"
)
"""A topic as its own consumer group, and the error that follows."""


class Answer(Enum):
    """Kind of output of a command for our broker."""

    APACHES = "as Apache's"
    MORE = "as Apache's, and more"
    OURS = "with our own values"
    REFUSED = "not supported here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One command with its words.

    Attributes:
        apart: Regex of lines that only Apache's broker prints.
        shows: Regex that is found in our output; in that of a refusal it is the reason.
        limit_ms: The command is interrupted after this time; 0: it ends by itself.
    """

    words: str
    response: Answer = Answer.APACHES
    apart: str = ""
    shows: str = ""
    limit_ms: int = 0

    @property
    def command(self) -> str:
        """Name of the command."""
        return self.words.split()[0]


def _rows(text: str) -> list[Row]:
    return [Row(words=line.strip()) for line in text.strip().splitlines()]


def _more(words: str, apart: str = "") -> Row:
    return Row(words=words, response=Answer.MORE, apart=apart)


def _ours(words: str, shows: str) -> Row:
    return Row(words=words, response=Answer.OURS, shows=shows)


def _refused(words: str, reason: str) -> Row:
    return Row(words=words, response=Answer.REFUSED, shows=reason)


_COLD = "reads of old messages are not limited per group"
_NO_ACCOUNTS = "accounts are switched off; set authenticationEnabled=true"

ROWS: Final = (
    *_rows("""
        updateTopic -c {cluster} -t admin-topic -r 4 -w 4
        updateTopicList -b {broker} -f {home}/topics.json
        updateTopicPerm -b {broker} -t admin-second -p 4
        updateSubGroup -c {cluster} -g admin-group
        updateSubGroupList -b {broker} -f {home}/groups.json
        setConsumeMode -b {broker} -t admin-topic -g admin-pop -m POP -q 2
        clients {namesrv} admin-topic admin-group admin-producers
        topicRoute -t admin-topic
        topicStatus -t admin-topic
        topicClusterList -t admin-topic
    """),
    _more("topicList"),
    _more("topicList -c", apart=r"(\S+) \1$|RMQ_SYS_TRANS"),
    *_rows("""
        sendMessage -t admin-topic -p hello -k key-of-it -c TagB -b {name} -i 0 -m true
        sendMsgStatus -b {name} -c 2
        checkMsgSendRT -t admin-topic -a 2 -s 16
    """),
    _more("queryMsgById -t admin-topic -i {id}", apart=TRACK),
    *_rows("""
        queryMsgByKey -t admin-topic -k key-of-it
    """),
    _more("queryMsgByUniqueKey -t admin-topic -i {id}", apart=TRACK),
    _more("queryMsgByOffset -t admin-topic -b {name} -i 0 -o 0", apart=TRACK),
    _more("exporter {namesrv} {broker} {cluster} admin-topic admin-group admin-producers"),
    *_rows("""
        dashboard {namesrv} {broker} {cluster} admin-topic admin-group admin-producers {id}
        queryMsgTraceById -i {id}
        printMsg -t admin-second -d true
        printMsgByQueue -t admin-topic -a {name} -i 1 -p true
        consumeMessage -t admin-topic -b {name} -i 0 -o 0 -c 1
    """),
    _more("brokerStatus -b {broker}", apart="putMessageDistributeTime : null"),
    _more("brokerConsumeStats -b {broker}"),
    *_rows("""
        producerConnection -g admin-producers -t admin-topic
        producer -b {broker}
        consumerConnection -g admin-group
    """),
    _more("consumerProgress -g admin-group"),
    *_rows("""
        consumerProgress
        consumerStatus -g admin-group
        getConsumerConfig -g admin-group
        cloneGroupOffset -s admin-group -d admin-clone -t admin-topic
        resetOffsetByTime -g admin-group -t admin-topic -s now
        resetOffsetByTime -g admin-absent -t admin-topic -s now
        skipAccumulatedMessage -g admin-group -t admin-topic
        clusterList
        clusterList -m
        haStatus -b {broker}
    """),
    _more("statsAll -t admin-topic", apart=r"(\S+) \1 "),
    *_rows("""
        allocateMQ -t admin-topic -i a,b
        queryCq -t admin-topic -q 0 -i 0 -c 2 -b {broker} -g admin-group
        updateKvConfig -s admin-space -k key -v value
        deleteKvConfig -s admin-space -k key
        updateOrderConf -t admin-topic -m put -v {name}:4
        updateOrderConf -t admin-topic -m get
        updateOrderConf -t admin-topic -m delete
        wipeWritePerm -b {name}
        addWritePerm -b {name}
    """),
    _ours("getNamesrvConfig", r"(?m)^listenPort = N$"),
    *_rows("updateNamesrvConfig -k enableTopicList -v true"),
    _ours("getBrokerConfig -b {broker}", r"(?m)^brokerName = broker-a$"),
    *_rows("""
        updateBrokerConfig -b {broker} -k fileReservedTime -v 48
        cleanExpiredCQ -b {broker}
        deleteExpiredCommitLog -b {broker}
        cleanUnusedTopic -b {broker}
        exportMetadata -c {cluster} -f {home}/export
        exportConfigs -c {cluster} -f {home}/export
        exportMetrics -c {cluster} -f {home}/export
        exportPopRecord -b {broker}
        rocksDBConfigToJson -b {broker}
        exportMetadataInRocksDB -p {home}/absent -t topics
    """),
    _refused(
        "checkRocksdbCqWriteProgress -c {cluster}",
        "consume queues are files, not in RocksDB; "
        "compare them with the log by `duemq store verify`",
    ),
    *_rows("""
        resetMasterFlushOffset -b {broker} -o 0
        getBrokerEpoch -b {name}
    """),
    _refused("getColdDataFlowCtrInfo -b {broker}", _COLD),
    _refused("updateColdDataFlowCtrGroupConfig -b {broker} -g admin-group -v 1", _COLD),
    _refused("removeColdDataFlowCtrGroupConfig -b {broker} -g admin-group", _COLD),
    _refused(
        "setCommitLogReadAheadMode -b {broker} -m 0",
        "the read-ahead of the log adapts to the reads",
    ),
    _refused(
        "updateStaticTopic -c {cluster} -t admin-static -qn 2",
        "queues are not mapped to other brokers; create the topic with updateTopic",
    ),
    *_rows("""
        remappingStaticTopic -c {cluster} -t admin-topic
        addBroker -c {broker} -b {home}/absent.conf
        removeBroker -c {broker} -b {cluster}:{name}:0
        dumpCompactionLog -f {home}/absent
    """),
    *(
        _refused(words.strip(), _NO_ACCOUNTS)
        for words in """
            createUser -b {broker} -u u -p p
            updateUser -b {broker} -u u -p p2
            getUser -b {broker} -u u
            listUser -b {broker}
            deleteUser -b {broker} -u u
            copyUser -f {broker} -t {broker}
            createAcl -b {broker} -s User:u -r Topic:t -a Pub -d Allow
            updateAcl -b {broker} -s User:u -r Topic:t -a Pub -d Deny
            getAcl -b {broker} -s User:u
            listAcl -b {broker}
            deleteAcl -b {broker} -s User:u
            copyAcl -f {broker} -t {broker}
        """.strip().splitlines()
    ),
    *_rows("""
        getSyncStateSet -a {namesrv} -c {cluster}
        getControllerMetaData -a {namesrv}
        getControllerConfig -a {namesrv}
        updateControllerConfig -a {namesrv} -k k -v v
        electMaster -a {namesrv} -b 1 -bn {name} -c {cluster}
        cleanBrokerMetadata -a {namesrv} -bn {name} -c {cluster}
        deleteSubGroup -c {cluster} -g admin-clone
        deleteTopic -c {cluster} -t admin-second
    """),
    Row(words="clusterRT -a 2 -i 9", limit_ms=SHORT_MS),
    Row(words="startMonitoring", limit_ms=SHORT_MS),
)
CLIENTS: Final = "clients"
OTHERS: Final = (CLIENTS, "exporter", "dashboard")  # no commands of mqadmin: see Admin.java
COMMANDS: Final = tuple(dict.fromkeys(row.command for row in ROWS if row.command not in OTHERS))
