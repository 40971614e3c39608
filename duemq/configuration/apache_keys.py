"""Keys of Apache 4.9 and 5.3.3 that DueMQ ignores, and values that it refuses.

An existing `broker.conf` can be used unchanged: the keys listed here have no effect, for the given
reason. A value that requests an unsupported guarantee (access control, replicas, another store
format) prevents the start instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from duemq_common.config_text import Properties, UnknownKey, unknown_keys
from duemq_common.errors import ConfigError

_WITHOUT_EFFECT = {
    "a due timer is retried until it is delivered; an undeliverable one goes to quarantine": (
        "timerEnableRetryUntilSuccess timerSkipUnknownError"
    ),
    "pending timers are counted exactly, so no recount is needed": (
        "timerCheckMetricsWhen timerEnableCheckMetrics timerMetricSmallThreshold"
    ),
    "one loop enqueues and delivers all timers, in batches": """
        timerEnableDisruptor timerGetMessageThreadNum timerPutMessageThreadNum
    """,
    "slots are loaded shortly before they begin, and figures are served at /metrics": (
        "timerColdDataCheckIntervalMs timerProgressLogIntervalMs timerWarmEnable"
    ),
    "levels become timers only by `duemq migrate`; Apache does not read this key either": (
        "timerInterceptDelayLevel"
    ),
    "a broker registers and delivers as soon as it is ready": "disappearTimeAfterStart",
    "everything that was written is synced at every interval": """
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
        flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
    """,
    "recovery always checks as much as it can": "checkCRCOnRecover messageIndexSafe",
    "the limit of topic names is fixed": "maxTopicLength",
    "users and permissions are in one file, and Java classes cannot be loaded": """
        authConfigPath authenticationMetadataProvider authenticationProvider
        authenticationStrategy authorizationMetadataProvider authorizationProvider
        authorizationStrategy aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
        userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    """,
    "accounts of plain_acl.yml are not converted to users": "migrateAuthFromV1Enabled",
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
    "replication is not throttled, and no replica acts as the master": """
        brokerIP2 brokerNotActiveTimeoutMillis duplicationEnable enableDLegerCommitLog
        enableRemoteEscape enableSlaveActingMaster fetchControllerAddrByDnsLookup forwardTimeout
        haFlowControlEnable isBrokerContainer isInBrokerContainer maxChecksumRange
        maxHaTransferByteInSecond maxSlaveResendLength offsetCheckInSlave replicasPerDiskPartition
        sendHeartbeatTimeoutMillis skipPreOnline syncBrokerMemberGroupPeriod
        syncMasterFlushOffsetWhenStartup totalReplicas
    """,
    "each heartbeat of a member returns the master of its group": "syncBrokerMetadataPeriod",
    "compaction topics are not supported": """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
        compactionThreadNum enableCompaction maxOffsetMapSize
    """,
    "there are no thread pools: one event loop processes whole buffers": """
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
    "statistics have one format and are served at /metrics": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats
        commercialBaseCount commercialSizePerMsg diskFallRecorded enableDetailStat
        enableLmqStats estimateAccumulation isolateLogEnable maxStatsIdleTimeInMinutes
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
        metricLoggingExporterIntervalInMills metricsGrpcExporterHeader
        metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
        sampleCountThreshold sampleSteps transactionMetricFlushInterval
        useStaticSubscription
    """,
    "light, batch and extended queues are not supported": """
        enableConsumeQueueExt enableLmq enableMixedMessageType enableMultiDispatch
        mappedFileSizeConsumeQueueExt mapperFileSizeBatchConsumeQueue maxLmqConsumeQueueNum
        searchBcqByCacheEnable
    """,
    "DueMQ has another mechanism, or does not have the feature": """
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
    "the name server is one small process": """
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
"""Reasons by key for Apache's keys without effect."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Key with its only accepted values, and the remedy for other values."""

    key: str
    allowed: tuple[str, ...]
    why: str


_NO_DLEDGER = (
    "DLedger's commit log has another format; for a group with election set "
    "enableControllerMode=true and controllerAddr instead"
)
_NO_COPY = "plain_acl.yml is not converted to users; set aclEnable, or create users by mqadmin"
REFUSALS = (
    Refusal("migrateAuthFromV1Enabled", ("false",), _NO_COPY),
    Refusal(
        "storeType",
        ("default",),
        "only file-based consume queues are supported; convert the store with Apache's broker",
    ),
    Refusal("enableDLegerCommitLog", ("false",), _NO_DLEDGER),
    Refusal(
        "enableConsumeQueueExt",
        ("false",),
        "extended consume queues are not supported; remove this key and delete consumequeue to "
        "rebuild plain queues from the commit log",
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
    """Return the configured keys of Apache's without effect, sorted."""
    return sorted(key for key in properties if key in WITHOUT_EFFECT and key not in known)


def unknown_key_list(properties: Mapping[str, str], known: set[str]) -> list[UnknownKey]:
    """Return the keys that neither DueMQ nor Apache defines, with the most similar known key."""
    own = {key: value for key, value in properties.items() if key not in WITHOUT_EFFECT}
    if isinstance(properties, Properties):
        own_with_source = Properties(own, {key: properties.source(key) for key in own})
        return unknown_keys(own_with_source, known)
    return unknown_keys(own, known)
