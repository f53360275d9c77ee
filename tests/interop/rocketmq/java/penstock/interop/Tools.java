// The calls of the RocketMQ Dashboard and of the Prometheus exporter, and what each of them gets: the
// result as JSON, or the code of the error. One that has no result and no error gets null.
//
// They ask about a topic, and a group that has a member now and no other one; `idle` is a group that
// has none, and `made` is what topics and groups are called that they make and delete.
package penstock.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

final class Tools {
    private static final int TIMEOUT_MS = 30_000;
    private static final String[] OF_TOPICS = {"TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"};
    private static final String[] OF_GROUPS = {"GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"};
    private static final String[] OF_BROKERS = {"BROKER_PUT_NUMS", "BROKER_GET_NUMS"};

    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(TIMEOUT_MS);
    private final String broker;
    private final Map<String, Object> said = new LinkedHashMap<>();

    Tools(String nameServer, String broker, String instance) throws Exception {
        this.broker = broker;
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName(instance + "-tools");
        admin.start();
    }

    void close() {
        Ending.of(admin::shutdown);
    }

    private interface Call {
        Object get() throws Exception;
    }

    private interface Order {
        void obey() throws Exception;
    }

    private void ask(String name, Call call) throws Exception {
        Object found;
        try {
            found = call.get();
        } catch (MQBrokerException error) {
            found = "code " + error.getResponseCode();
        } catch (MQClientException error) {
            found = "code " + error.getResponseCode();
        }
        said.put(name, JSON.parse(JSON.toJSONString(
            found, SerializerFeature.WriteNonStringKeyAsString, SerializerFeature.MapSortField)));
    }

    private void tell(String name, Order order) throws Exception {
        ask(name, () -> {
            order.obey();
            return null;
        });
    }

    /** What the exporter counts by, and what else changes with the time. */
    Map<String, Object> counts(JSONObject order) throws Exception {
        said.clear();
        String topic = order.getString("topic");
        String group = order.getString("group");
        String address = address();
        ask("fetchBrokerRuntimeStats", () -> admin.fetchBrokerRuntimeStats(address).getTable());
        ask("examineConsumeStats", () -> admin.examineConsumeStats(group, topic));
        for (String name : OF_TOPICS) {
            ask(name, () -> admin.viewBrokerStatsData(address, name, topic));
        }
        for (String name : OF_GROUPS) {
            ask(name, () -> admin.viewBrokerStatsData(address, name, topic + "@" + group));
            ask(name + " of no one", () -> admin.viewBrokerStatsData(address, name, topic + "@nobody"));
        }
        for (String name : OF_BROKERS) {
            ask(name, () -> admin.viewBrokerStatsData(address, name, order.getString("cluster")));
        }
        return said;
    }

    Map<String, Object> all(JSONObject order) throws Exception {
        said.clear();
        String topic = order.getString("topic");
        String group = order.getString("group");
        String idle = order.getString("idle");
        String made = order.getString("made");
        String key = order.getString("key");
        String address = address();
        ask("examineBrokerClusterInfo", admin::examineBrokerClusterInfo);
        ask("fetchAllTopicList", () -> admin.fetchAllTopicList().getTopicList());
        ask("examineTopicRouteInfo", () -> admin.examineTopicRouteInfo(topic));
        ask("examineTopicStats", () -> admin.examineTopicStats(topic).getOffsetTable());
        ask("examineTopicConfig", () -> admin.examineTopicConfig(address, topic));
        ask("getAllTopicConfig",
            () -> admin.getAllTopicConfig(address, TIMEOUT_MS).getTopicConfigTable().get(topic));
        ask("getBrokerConfig", () -> admin.getBrokerConfig(address).get("brokerName"));
        ask("getAllProducerInfo", () -> admin.getAllProducerInfo(address).getData().get("interop-NONE"));
        ask("examineProducerConnectionInfo", () -> admin.examineProducerConnectionInfo("interop-NONE", topic));
        ask("queryTopicConsumeByWho", () -> admin.queryTopicConsumeByWho(topic).getGroupList());
        var members = admin.examineConsumerConnectionInfo(group);
        ask("examineConsumerConnectionInfo", () -> members);
        ask("examineConsumerConnectionInfo of no one", () -> admin.examineConsumerConnectionInfo("nobody"));
        String member = members.getConnectionSet().iterator().next().getClientId();
        ask("getConsumerRunningInfo",
            () -> admin.getConsumerRunningInfo(group, member, false).getSubscriptionSet());
        ask("examineSubscriptionGroupConfig", () -> admin.examineSubscriptionGroupConfig(address, group));
        ask("getAllSubscriptionGroup", () -> admin.getAllSubscriptionGroup(address, TIMEOUT_MS)
            .getSubscriptionGroupTable().get(group));
        var found = admin.queryMessage(topic, key, 1, 0, Long.MAX_VALUE).getMessageList().get(0);
        ask("queryMessage", found::getKeys);
        ask("viewMessage", () -> admin.viewMessage(topic, found.getMsgId()).getKeys());
        ask("messageTrackDetail", () -> admin.messageTrackDetail(found));
        ask("consumeMessageDirectly", () ->
            admin.consumeMessageDirectly(group, member, topic, found.getMsgId()).getConsumeResult());
        ask("resetOffsetByTimestampOld", () -> admin.resetOffsetByTimestampOld(idle, topic, 0, true));
        ask("resetOffsetByTimestamp", () -> admin.resetOffsetByTimestamp(topic, group, 0, true));
        tell("createAndUpdateTopicConfig",
            () -> admin.createAndUpdateTopicConfig(address, new TopicConfig(made, 2, 2, 6)));
        tell("createAndUpdateSubscriptionGroupConfig", () -> {
            var config = admin.examineSubscriptionGroupConfig(address, group);
            config.setGroupName(made);
            admin.createAndUpdateSubscriptionGroupConfig(address, config);
        });
        tell("deleteSubscriptionGroup", () -> admin.deleteSubscriptionGroup(address, made));
        tell("deleteTopicInBroker", () -> admin.deleteTopicInBroker(Set.of(address), made));
        tell("deleteTopicInNameServer", () -> admin.deleteTopicInNameServer(
            Set.copyOf(admin.getNameServerAddressList()), order.getString("cluster"), made));
        ask("examineTopicConfig of what was deleted", () -> admin.examineTopicConfig(address, made));
        return said;
    }

    private String address() throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().get(broker).selectBrokerAddr();
    }
}
