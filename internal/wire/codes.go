// Package wire is RocketMQ's vocabulary: request and response codes, typed
// headers, message bodies, the bytes of stored messages, batches and ids.
//
// Everything that reads bytes takes them for hostile: a malformed input gives an
// error, never a panic, and never an allocation of more than a small multiple of
// its own length. Readers are lenient where the implementations in the field
// differ from each other; writers emit the one form that all of them read.
package wire

import "strconv"

// Request codes of RocketMQ's remoting protocol.
const (
	CodeSendMessage              int32 = 10
	CodePullMessage              int32 = 11
	CodeQueryMessage             int32 = 12
	CodeQueryConsumerOffset      int32 = 14
	CodeUpdateConsumerOffset     int32 = 15
	CodeUpdateAndCreateTopic     int32 = 17
	CodeGetAllTopicConfig        int32 = 21
	CodeUpdateBrokerConfig       int32 = 25
	CodeGetBrokerConfig          int32 = 26
	CodeGetBrokerRuntimeInfo     int32 = 28
	CodeSearchOffsetByTimestamp  int32 = 29
	CodeGetMaxOffset             int32 = 30
	CodeGetMinOffset             int32 = 31
	CodeGetEarliestMsgStoreTime  int32 = 32
	CodeViewMessageByID          int32 = 33
	CodeHeartBeat                int32 = 34
	CodeUnregisterClient         int32 = 35
	CodeConsumerSendMsgBack      int32 = 36
	CodeEndTransaction           int32 = 37
	CodeGetConsumerListByGroup   int32 = 38
	CodeCheckTransactionState    int32 = 39
	CodeNotifyConsumerIDsChanged int32 = 40
	CodeLockBatchMQ              int32 = 41
	CodeUnlockBatchMQ            int32 = 42
	CodeGetAllConsumerOffset     int32 = 43
	CodeGetAllDelayOffset        int32 = 45
	CodeCheckClientConfig        int32 = 46

	CodePutKVConfig                      int32 = 100
	CodeGetKVConfig                      int32 = 101
	CodeDeleteKVConfig                   int32 = 102
	CodeRegisterBroker                   int32 = 103
	CodeUnregisterBroker                 int32 = 104
	CodeGetRouteInfoByTopic              int32 = 105
	CodeGetBrokerClusterInfo             int32 = 106
	CodeUpdateAndCreateSubscriptionGroup int32 = 200
	CodeGetAllSubscriptionGroupConfig    int32 = 201
	CodeGetTopicStatsInfo                int32 = 202
	CodeGetConsumerConnectionList        int32 = 203
	CodeGetProducerConnectionList        int32 = 204
	CodeWipeWritePermOfBroker            int32 = 205
	CodeGetAllTopicListFromNameServer    int32 = 206
	CodeDeleteSubscriptionGroup          int32 = 207
	CodeGetConsumeStats                  int32 = 208
	CodeDeleteTopicInBroker              int32 = 215
	CodeDeleteTopicInNameServer          int32 = 216
	CodeGetKVListByNamespace             int32 = 219
	CodeResetConsumerClientOffset        int32 = 220
	CodeGetConsumerStatusFromClient      int32 = 221
	CodeInvokeBrokerToResetOffset        int32 = 222
	CodeInvokeBrokerToGetConsumerStatus  int32 = 223
	CodeGetTopicsByCluster               int32 = 224
	CodeQueryTopicConsumeByWho           int32 = 300
	CodeQueryConsumeTimeSpan             int32 = 303
	CodeGetSystemTopicListFromNameServer int32 = 304
	CodeGetSystemTopicListFromBroker     int32 = 305
	CodeCleanExpiredConsumeQueue         int32 = 306
	CodeGetConsumerRunningInfo           int32 = 307
	CodeQueryCorrectionOffset            int32 = 308
	CodeConsumeMessageDirectly           int32 = 309
	CodeSendMessageV2                    int32 = 310
	CodeGetUnitTopicList                 int32 = 311
	CodeGetHasUnitSubTopicList           int32 = 312
	CodeGetHasUnitSubUnunitTopicList     int32 = 313
	CodeCloneGroupOffset                 int32 = 314
	CodeViewBrokerStatsData              int32 = 315
	CodeCleanUnusedTopic                 int32 = 316
	CodeGetBrokerConsumeStats            int32 = 317
	CodeUpdateNameServerConfig           int32 = 318
	CodeGetNameServerConfig              int32 = 319
	CodeSendBatchMessage                 int32 = 320
	CodeQueryConsumeQueue                int32 = 321
	CodeQueryDataVersion                 int32 = 322
	CodeResumeCheckHalfMessage           int32 = 323
	CodeSendReplyMessage                 int32 = 324
	CodeSendReplyMessageV2               int32 = 325
	CodePushReplyMessageToClient         int32 = 326
	CodeAddWritePermOfBroker             int32 = 327
	CodeGetAllProducerInfo               int32 = 328
	CodeDeleteExpiredCommitLog           int32 = 329
	CodeGetTopicConfig                   int32 = 351
	CodeLitePullMessage                  int32 = 361
)

// Response codes. Zero is success; the codes 10 to 12 mean "stored, but".
const (
	Success                   int32 = 0
	SystemError               int32 = 1
	SystemBusy                int32 = 2
	RequestCodeNotSupported   int32 = 3
	TransactionFailed         int32 = 4
	FlushDiskTimeout          int32 = 10
	SlaveNotAvailable         int32 = 11
	FlushSlaveTimeout         int32 = 12
	MessageIllegal            int32 = 13
	ServiceNotAvailable       int32 = 14
	VersionNotSupported       int32 = 15
	NoPermission              int32 = 16
	TopicNotExist             int32 = 17
	TopicExistAlready         int32 = 18
	PullNotFound              int32 = 19
	PullRetryImmediately      int32 = 20
	PullOffsetMoved           int32 = 21
	QueryNotFound             int32 = 22
	SubscriptionParseFailed   int32 = 23
	SubscriptionNotExist      int32 = 24
	SubscriptionNotLatest     int32 = 25
	SubscriptionGroupNotExist int32 = 26
	FilterDataNotExist        int32 = 27
	FilterDataNotLatest       int32 = 28
	InvalidParameter          int32 = 29
	ConsumerNotOnline         int32 = 206
	ConsumeMsgTimeout         int32 = 207
	NoMessage                 int32 = 208
	FlowControl               int32 = 215
	GoAway                    int32 = 1500
)

// ResponseName is the name of a response code for error texts, as RocketMQ
// spells it, or the number of a code without a name.
func ResponseName(code int32) string {
	switch code {
	case Success:
		return "SUCCESS"
	case SystemError:
		return "SYSTEM_ERROR"
	case SystemBusy:
		return "SYSTEM_BUSY"
	case RequestCodeNotSupported:
		return "REQUEST_CODE_NOT_SUPPORTED"
	case TransactionFailed:
		return "TRANSACTION_FAILED"
	case FlushDiskTimeout:
		return "FLUSH_DISK_TIMEOUT"
	case SlaveNotAvailable:
		return "SLAVE_NOT_AVAILABLE"
	case FlushSlaveTimeout:
		return "FLUSH_SLAVE_TIMEOUT"
	case MessageIllegal:
		return "MESSAGE_ILLEGAL"
	case ServiceNotAvailable:
		return "SERVICE_NOT_AVAILABLE"
	case VersionNotSupported:
		return "VERSION_NOT_SUPPORTED"
	case NoPermission:
		return "NO_PERMISSION"
	case TopicNotExist:
		return "TOPIC_NOT_EXIST"
	case TopicExistAlready:
		return "TOPIC_EXIST_ALREADY"
	}
	return consumerResponseName(code)
}

func consumerResponseName(code int32) string {
	switch code {
	case PullNotFound:
		return "PULL_NOT_FOUND"
	case PullRetryImmediately:
		return "PULL_RETRY_IMMEDIATELY"
	case PullOffsetMoved:
		return "PULL_OFFSET_MOVED"
	case QueryNotFound:
		return "QUERY_NOT_FOUND"
	case SubscriptionParseFailed:
		return "SUBSCRIPTION_PARSE_FAILED"
	case SubscriptionNotExist:
		return "SUBSCRIPTION_NOT_EXIST"
	case SubscriptionNotLatest:
		return "SUBSCRIPTION_NOT_LATEST"
	case SubscriptionGroupNotExist:
		return "SUBSCRIPTION_GROUP_NOT_EXIST"
	case FilterDataNotExist:
		return "FILTER_DATA_NOT_EXIST"
	case FilterDataNotLatest:
		return "FILTER_DATA_NOT_LATEST"
	case InvalidParameter:
		return "INVALID_PARAMETER"
	case ConsumerNotOnline:
		return "CONSUMER_NOT_ONLINE"
	case ConsumeMsgTimeout:
		return "CONSUME_MSG_TIMEOUT"
	case NoMessage:
		return "NO_MESSAGE"
	case FlowControl:
		return "FLOW_CONTROL"
	case GoAway:
		return "GO_AWAY"
	}
	return strconv.Itoa(int(code))
}
