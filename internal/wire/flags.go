package wire

// Bits of a message's system flag.
const (
	SysCompressed int32 = 0x1
	SysMultiTags  int32 = 0x2

	// SysTransactionMask selects the transaction state, one of the next four.
	SysTransactionMask     int32 = 0xC
	SysTransactionNone     int32 = 0x0
	SysTransactionPrepared int32 = 0x4
	SysTransactionCommit   int32 = 0x8
	SysTransactionRollback int32 = 0xC

	SysBornHostV6  int32 = 0x10
	SysStoreHostV6 int32 = 0x20
	SysNeedUnwrap  int32 = 0x40
	SysInnerBatch  int32 = 0x80

	// SysCompressionMask selects the compression type; it means something only
	// together with SysCompressed. Zero is zlib, from peers that know no types.
	SysCompressionMask int32 = 0x700
	SysCompressionLZ4  int32 = 0x100
	SysCompressionZstd int32 = 0x200
	SysCompressionZlib int32 = 0x300
)

// Bits of a pull request's system flag.
const (
	PullCommitOffset int32 = 1
	PullSuspend      int32 = 2
	PullSubscription int32 = 4
	PullClassFilter  int32 = 8
	PullLite         int32 = 16
)

// Bits of a topic's or a broker's permission.
const (
	PermInherit  int32 = 1
	PermWrite    int32 = 2
	PermRead     int32 = 4
	PermPriority int32 = 8
)

// Bits of a topic's system flag.
const (
	TopicUnit    int32 = 1
	TopicUnitSub int32 = 2
)

// Limits of RocketMQ's formats, in bytes.
const (
	MaxTopicBytes      = 127      // a V1 record keeps the length in one signed byte
	MaxGroupBytes      = 255      // RocketMQ's own limit, no field enforces it
	MaxPropertiesBytes = 32767    // the length is a signed 16-bit number
	MaxBodyBytes       = 4 << 20  // RocketMQ's default limit of a message body
	MaxFrameBytes      = 16 << 20 // beyond it RocketMQ closes the connection
)

// Names of topics and groups with a meaning of their own.
const (
	RetryPrefix        = "%RETRY%"
	DLQPrefix          = "%DLQ%"
	ReplySuffix        = "_REPLY_TOPIC"
	SystemPrefix       = "rmq_sys_"
	TopicAutoCreate    = "TBW102"
	TopicSchedule      = "SCHEDULE_TOPIC_XXXX"
	TopicHalf          = "RMQ_SYS_TRANS_HALF_TOPIC"
	TopicHalfOp        = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
	TopicCheckMaxTime  = "TRANS_CHECK_MAX_TIME_TOPIC"
	TopicTrace         = "RMQ_SYS_TRACE_TOPIC"
	TopicSelfTest      = "SELF_TEST_TOPIC"
	TopicBenchmark     = "BenchmarkTest"
	TopicOffsetMoved   = "OFFSET_MOVED_EVENT"
	GroupInnerProducer = "CLIENT_INNER_PRODUCER"
	NamespaceOrder     = "ORDER_TOPIC_CONFIG"
)

// Reserved property keys.
const (
	PropKeys                = "KEYS"
	PropTags                = "TAGS"
	PropWait                = "WAIT"
	PropDelay               = "DELAY"
	PropUniqueKey           = "UNIQ_KEY"
	PropRetryTopic          = "RETRY_TOPIC"
	PropRealTopic           = "REAL_TOPIC"
	PropRealQueue           = "REAL_QID"
	PropOriginMessageID     = "ORIGIN_MESSAGE_ID"
	PropReconsumeTime       = "RECONSUME_TIME"
	PropMaxReconsumeTimes   = "MAX_RECONSUME_TIMES"
	PropTransaction         = "TRAN_MSG"
	PropProducerGroup       = "PGROUP"
	PropCheckTimes          = "TRANSACTION_CHECK_TIMES"
	PropPreparedQueueOffset = "TRAN_PREPARED_QUEUE_OFFSET"
	PropCheckImmunity       = "CHECK_IMMUNITY_TIME_IN_SECONDS"
	PropTransactionID       = "__transactionId__"
	PropCorrelationID       = "CORRELATION_ID"
	PropReplyToClient       = "REPLY_TO_CLIENT"
	PropTTL                 = "TTL"
	PropMessageType         = "MSG_TYPE"
	PropPushReplyTime       = "PUSH_REPLY_TIME"
	PropArriveTime          = "ARRIVE_TIME"
	PropCluster             = "CLUSTER"
	PropRegion              = "MSG_REGION"
	PropTraceOn             = "TRACE_ON"
	PropMinOffset           = "MIN_OFFSET"
	PropMaxOffset           = "MAX_OFFSET"
	PropConsumeStartTime    = "CONSUME_START_TIME"
	PropInstanceID          = "INSTANCE_ID"
	PropStartDeliverTime    = "__STARTDELIVERTIME"
	PropShardingKey         = "SHARDING_KEY"
	PropShardingKeyV5       = "__SHARDINGKEY"
	PropTimerDelaySec       = "TIMER_DELAY_SEC"
	PropTimerDelayMs        = "TIMER_DELAY_MS"
	PropTimerDeliverMs      = "TIMER_DELIVER_MS"
	PropInnerNum            = "INNER_NUM"
	PropDLQOriginTopic      = "DLQ_ORIGIN_TOPIC"
	PropDLQOriginMessageID  = "DLQ_ORIGIN_MESSAGE_ID"
)
