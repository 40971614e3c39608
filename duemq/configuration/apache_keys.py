"""Keys of Apache 4.9 and 5.3.3 that have no effect in DueMQ, and values that it refuses.

An operator's `broker.conf` loads as it is: a key listed here is neither unknown nor an error; it
just has no effect, for the given reason. A value that would make the broker promise what it does
not keep (access control, replicas, another store format) stops the start instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from message_store.config_text import Properties, UnknownKey, unknown_keys
from message_store.errors import ConfigError

_WITHOUT_EFFECT = {
    "a due timer is tried until it is delivered; what never can be goes to quarantine": (
        "timerEnableRetryUntilSuccess timerSkipUnknownError"
    ),
    "pending timers are counted exactly, so nothing has to be counted again": (
        "timerCheckMetricsWhen timerEnableCheckMetrics timerMetricSmallThreshold"
    ),
    "one loop takes and delivers all timers, in batches": """
        timerEnableDisruptor timerGetMessageThreadNum timerPutMessageThreadNum
    """,
    "slots are loaded shortly before they begin, and figures are served at /metrics": (
        "timerColdDataCheckIntervalMs timerProgressLogIntervalMs timerWarmEnable"
    ),
    "a level is never turned into a timer behind an operator's back; nor does Apache read it": (
        "timerInterceptDelayLevel"
    ),
    "a broker registers and delivers as soon as it is ready": "disappearTimeAfterStart",
    "everything that was written is synced at every interval": """
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
        flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
    """,
    "recovery always checks as much as it can": "checkCRCOnRecover messageIndexSafe",
    "the length of a topic's name has one limit": "maxTopicLength",
    "users and permissions are kept in one file, and no class of Java can be loaded": """
        authConfigPath authenticationMetadataProvider authenticationProvider
        authenticationStrategy authorizationMetadataProvider authorizationProvider
        authorizationStrategy aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
        userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    """,
    "accounts of plain_acl.yml are not turned into users": "migrateAuthFromV1Enabled",
    "pop consumption has no such setting": """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity appendAckAsync appendCkAsync
        enableNotifyAfterPopOrderLockRelease
        enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge
        enablePopLog enablePopMessageThreshold enableRetryTopicV2 enableSkipLongAwaitingAck
        initPopOffsetByCheckMsgInMem maxPopPollingSize popCkMaxBufferSize
        popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut
        popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
        popConsumerKVServiceLog popFromRetryProbability popInflightMessageThreshold
        popLongPollingForceNotifyInterval popPollingMapSize popPollingSize
        popResponseReturnActualRetryTopic popReviveMaxAttemptTimes
        popReviveMaxReturnSizePerRead retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs
        reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
        skipWhenCKRePutReachMaxTimes waitTimeMillsInAckQueue
    """,
    "consume queues are plain files": """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin
        enableRocksDBLog memTableFlushIntervalMs realTimePersistRocksDBConfig
        rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec
    """,
    "replicas copy as fast as they can, and no replica acts as the master": """
        brokerIP2 brokerNotActiveTimeoutMillis duplicationEnable enableDLegerCommitLog
        enableRemoteEscape enableSlaveActingMaster fetchControllerAddrByDnsLookup forwardTimeout
        haFlowControlEnable isBrokerContainer isInBrokerContainer maxChecksumRange
        maxHaTransferByteInSecond maxSlaveResendLength offsetCheckInSlave replicasPerDiskPartition
        sendHeartbeatTimeoutMillis skipPreOnline syncBrokerMemberGroupPeriod
        syncMasterFlushOffsetWhenStartup totalReplicas
    """,
    "a member asks for the master of its group with each heartbeat": "syncBrokerMetadataPeriod",
    "compaction topics are not offered": """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
        compactionThreadNum enableCompaction maxOffsetMapSize
    """,
    "there are no thread pools: one event loop takes whole buffers": """
        adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity asyncSendEnable
        batchDispatchRequestThreadPoolNums brokerFastFailureEnable clientAsyncSemaphoreValue
        clientCallbackExecutorThreads clientManageThreadPoolNums
        clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
        clientPooledByteBufAllocatorEnable clientWorkerThreads consumerManageThreadPoolNums
        consumerManagerThreadPoolQueueCapacity debugLockEnable disableCallbackExecutor
        dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread enableAsyncReput
        enableBuildConsumeQueueConcurrently endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums fastFailIfNoBufferInStorePool heartbeatThreadPoolNums
        heartbeatThreadPoolQueueCapacity litePullMessageThreadPoolNums
        litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums
        loadBalanceThreadPoolQueueCapacity lockInStrictMode maxAsyncPutMessageRequests
        osPageCacheBusyTimeOutMills processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums
        putMessageTimeout putThreadPoolQueueCapacity queryMessageThreadPoolNums
        queryThreadPoolQueueCapacity recoverConcurrently recoverThreadPoolNums
        replyThreadPoolQueueCapacity sendMessageThreadPoolNums sendThreadPoolQueueCapacity
        serverAsyncSemaphoreValue serverCallbackExecutorThreads serverOnewaySemaphoreValue
        serverPooledByteBufAllocatorEnable serverSelectorThreads serverWorkerThreads
        spinLockCollisionRetreatOptimalDegree topicQueueLockNum transientStorePoolEnable
        transientStorePoolSize useABSLock useReentrantLockWhenPutMessage
        waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
        waitTimeMillsInTransactionQueue
    """,
    "connections are handled by asyncio and uvloop": """
        channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
        clientSocketRcvBufSize clientSocketSndBufSize connectTimeoutMillis
        disableNettyWorkerGroup enableFastChannelEventProcess enableReconnectForGoAway
        enableShutdownGracefully fetchNamesrvAddrByAddressServer
        loadBalancePollNameServerInterval maxReconnectIntervalTimeSeconds printChannelGroups
        printChannelGroupsMinNum putConsumeQueueDataByFileChannel
        serverNettyWorkerGroupEnable serverSocketRcvBufSize serverSocketSndBufSize
        shutdownWaitTimeSeconds transferMsgByHeap updateNameServerAddrPeriod
        useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark
    """,
    "the log is written with pwritev and read through the page cache": """
        accessMessageInMemoryHotRatio cgColdReadThreshold cleanSwapedMapInterval
        coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable
        commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
        commitLogForceSwapMapInterval commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum dataReadAheadEnable flushLeastPagesWhenWarmMapedFile
        globalColdReadThreshold highSpeedMode
        logicQueueForceSwapMapInterval logicQueueSwapMapInterval
        logicQueueSwapMapReserveFileNum mappedFileSwapEnable usePIDColdCtrStrategy
        wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
    """,
    "filters are evaluated when messages are pulled, without bitmaps": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap expectConsumerNumUseFilter
        filterDataCleanTimeSpan filterSupportRetry maxErrorRateOfBloomFilter
        maxFilterMessageSize
    """,
    "figures are kept in one way only and served at /metrics": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats
        commercialBaseCount commercialSizePerMsg diskFallRecorded enableDetailStat
        enableLmqStats estimateAccumulation isolateLogEnable maxStatsIdleTimeInMinutes
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
        metricLoggingExporterIntervalInMills metricsGrpcExporterHeader
        metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
        sampleCountThreshold sampleSteps transactionMetricFlushInterval
        useStaticSubscription
    """,
    "light, batch and extended queues are not offered": """
        enableConsumeQueueExt enableLmq enableMixedMessageType enableMultiDispatch
        mappedFileSizeConsumeQueueExt mapperFileSizeBatchConsumeQueue maxLmqConsumeQueueNum
        searchBcqByCacheEnable
    """,
    "DueMQ does this in its own way, or not at all": """
        autoMessageVersionOnTopicLen
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerConfigPath
        cleanOfflineBrokerInterval clearRetryTopicWhenDeleteTopic compatibleWithOldNameSrv
        compressedRegister configManagerVersion consumerFallbehindThreshold
        consumerOffsetUpdateVersionStep correctLogicMinOffsetForceInterval
        correctLogicMinOffsetSleepInterval
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
        destroyMapedFileIntervalForcibly disableConsumeIfConsumerReadSlowly enableBatchPush
        enableBroadcastOffsetStore enableCleanExpiredOffset enableCreateSysGroup
        enableNetWorkFlowControl enableRegisterProducer enableSingleTopicRegister
        enableSplitRegistration enabledAppendPropCRC fetchNameSrvAddrByDnsLookup
        fetchNamesrvAddrInterval filterServerNums flushConsumerOffsetHistoryInterval
        forceRegister forceVerifyPropCRC isScanAvailableNameSrv litePullMessageEnable
        logicalDiskSpaceCleanForciblyThreshold maxBatchDeleteFilesNum maxConsumeQueueScan
        maxMsgsNumBatch maxRecoveryCommitlogFiles maxTransferBytesOnMessageInDisk
        maxTransferCountOnMessageInDisk messageStorePlugIn pullBatchMaxMessageCount
        putMsgIndexHightWater readUnCommitted realTimeNotifyConsumerChange
        recheckReputOffsetFromCq redeleteHangedFileInterval rejectPullConsumerEnable
        socksProxyConfig splitRegistrationSize storeReplyMessageEnable
        storeType subscriptionExpiredTimeout transactionOpBatchInterval
        transactionOpMsgMaxSize travelCqFileNumWhenGetMessage
        validateSystemTopicWhenUpdateTopic
    """,
    "the name server keeps everything in one small process": """
        clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest
        configStorePath defaultThreadPoolNums defaultThreadPoolQueueCapacity
        deleteTopicWithBrokerRegistration enableAllTopicList enableControllerInNamesrv
        enableTopicList needWaitForService notifyMinBrokerIdChanged productEnvName
        supportActingMaster unRegisterBrokerQueueCapacity waitSecondsForService
    """,
}

WITHOUT_EFFECT: Mapping[str, str] = {
    key: why for why, keys in _WITHOUT_EFFECT.items() for key in keys.split()
}
"""Apache's keys that have no effect here, and why."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A key that must keep its harmless value, and what to do instead."""

    key: str
    allowed: tuple[str, ...]
    why: str


_NO_DLEDGER = (
    "the commit log of DLedger has another format; for a group with election set "
    "enableControllerMode=true and controllerAddr instead"
)
_NO_COPY = "plain_acl.yml is not turned into users; set aclEnable, or create the users by mqadmin"
REFUSALS = (
    Refusal("migrateAuthFromV1Enabled", ("false",), _NO_COPY),
    Refusal(
        "storeType",
        ("default",),
        "only file-based consume queues can be opened; let Apache's broker convert the store",
    ),
    Refusal("enableDLegerCommitLog", ("false",), _NO_DLEDGER),
    Refusal(
        "enableConsumeQueueExt",
        ("false",),
        "extended consume queues cannot be read; remove this key and delete consumequeue to "
        "have plain queues built from the commit log",
    ),
)


def check_refusals(properties: Mapping[str, str]) -> None:
    """Raise ConfigError for a value that requires an unsupported guarantee."""
    for refusal in REFUSALS:
        value = properties.get(refusal.key)
        if value is not None and value.lower() not in map(str.lower, refusal.allowed):
            source = properties.source(refusal.key) if isinstance(properties, Properties) else ""
            raise ConfigError(refusal.key, value, refusal.why, source=source)


def without_effect(properties: Mapping[str, str], known: set[str]) -> list[str]:
    """Return the keys of Apache's that are set but have no effect here, sorted."""
    return sorted(key for key in properties if key in WITHOUT_EFFECT and key not in known)


def not_known(properties: Mapping[str, str], known: set[str]) -> list[UnknownKey]:
    """Return the keys that neither DueMQ nor Apache defines, with the most similar known key."""
    own = {key: value for key, value in properties.items() if key not in WITHOUT_EFFECT}
    if isinstance(properties, Properties):
        own_with_source = Properties(own, {key: properties.source(key) for key in own})
        return unknown_keys(own_with_source, known)
    return unknown_keys(own, known)
