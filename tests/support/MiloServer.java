import static org.eclipse.milo.opcua.stack.core.types.builtin.unsigned.Unsigned.uint;

import java.io.FileWriter;
import java.io.PrintWriter;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.eclipse.milo.opcua.sdk.core.Reference;
import org.eclipse.milo.opcua.sdk.server.OpcUaServer;
import org.eclipse.milo.opcua.sdk.server.Session;
import org.eclipse.milo.opcua.sdk.server.api.DataItem;
import org.eclipse.milo.opcua.sdk.server.api.ManagedNamespaceWithLifecycle;
import org.eclipse.milo.opcua.sdk.server.api.MonitoredItem;
import org.eclipse.milo.opcua.sdk.server.api.config.OpcUaServerConfig;
import org.eclipse.milo.opcua.sdk.server.identity.AbstractIdentityValidator;
import org.eclipse.milo.opcua.sdk.server.nodes.UaFolderNode;
import org.eclipse.milo.opcua.sdk.server.nodes.UaVariableNode;
import org.eclipse.milo.opcua.stack.core.Identifiers;
import org.eclipse.milo.opcua.stack.core.security.DefaultCertificateManager;
import org.eclipse.milo.opcua.stack.core.types.builtin.DataValue;
import org.eclipse.milo.opcua.stack.core.types.builtin.DateTime;
import org.eclipse.milo.opcua.stack.core.types.builtin.LocalizedText;
import org.eclipse.milo.opcua.stack.core.types.builtin.StatusCode;
import org.eclipse.milo.opcua.stack.core.types.builtin.Variant;
import org.eclipse.milo.opcua.stack.core.types.structured.AnonymousIdentityToken;
import org.eclipse.milo.opcua.stack.core.types.structured.SignatureData;
import org.eclipse.milo.opcua.stack.core.types.structured.UserTokenPolicy;
import org.eclipse.milo.opcua.stack.server.EndpointConfiguration;

/**
 * A server of Eclipse Milo whose variables change, and which writes down each value that it had.
 *
 * <p>java -cp JARS MiloServer PORT LOG OPTIONS. Each change is sent, and none is left out between two samples.
 */
final class MiloServer {
  /** Hands a subscription over from one anonymous client to another; Milo's own gives each session a user. */
  private static final class Anyone extends AbstractIdentityValidator<String> {
    @Override
    protected String validateAnonymousToken(
        Session session, AnonymousIdentityToken token, UserTokenPolicy policy, SignatureData signature) {
      return "anonymous";
    }
  }

  private static final class Press extends ManagedNamespaceWithLifecycle {
    private final List<UaVariableNode> variables = new ArrayList<>();
    private final List<DataItem> items = new ArrayList<>();

    Press(OpcUaServer server, int count) {
      super(server, "urn:example:press");
      getLifecycleManager().addStartupTask(() -> addNodes(count));
    }

    private void addNodes(int count) {
      var press =
          new UaFolderNode(
              getNodeContext(), newNodeId("Press"), newQualifiedName("Press"), LocalizedText.english("Press"));
      getNodeManager().addNode(press);
      press.addReference(
          new Reference(press.getNodeId(), Identifiers.Organizes, Identifiers.ObjectsFolder.expanded(), false));
      for (int number = 0; number < count; number++) {
        String name = "v" + number;
        var variable =
            new UaVariableNode.UaVariableNodeBuilder(getNodeContext())
                .setNodeId(newNodeId(name))
                .setBrowseName(newQualifiedName(name))
                .setDisplayName(LocalizedText.english(name))
                .setDataType(Identifiers.UInt32)
                .setTypeDefinition(Identifiers.BaseDataVariableType)
                .setValue(new DataValue(new Variant(uint(0))))
                .build();
        getNodeManager().addNode(variable);
        press.addOrganizes(variable);
        variables.add(variable);
      }
    }

    synchronized void change(long number, PrintWriter log) {
      for (UaVariableNode variable : variables) {
        // Milo's times have 100 ns, and the log microseconds.
        Instant now = Instant.now().truncatedTo(ChronoUnit.MICROS);
        log.printf("%s %d %s%n", variable.getBrowseName().getName(), number, now.toString().replace("Z", "+00:00"));
        DateTime time = new DateTime(now);
        variable.setValue(new DataValue(new Variant(uint(number)), StatusCode.GOOD, time, time));
      }
      log.flush();
      for (DataItem item : items) {
        send(item);
      }
    }

    private void send(DataItem item) {
      getNodeManager()
          .getNode(item.getReadValueId().getNodeId())
          .ifPresent(node -> item.setValue(((UaVariableNode) node).getValue()));
    }

    @Override
    public synchronized void onDataItemsCreated(List<DataItem> created) {
      items.addAll(created);
      created.forEach(this::send);
    }

    @Override
    public void onDataItemsModified(List<DataItem> modified) {}

    @Override
    public synchronized void onDataItemsDeleted(List<DataItem> deleted) {
      items.removeAll(deleted);
    }

    @Override
    public void onMonitoringModeChanged(List<MonitoredItem> changed) {}
  }

  private static double option(String options, String name) {
    Matcher found = Pattern.compile("\"" + name + "\": ([0-9.]+)").matcher(options);
    if (!found.find()) {
      throw new IllegalArgumentException(name);
    }
    return Double.parseDouble(found.group(1));
  }

  public static void main(String[] arguments) throws Exception {
    String options = arguments[2];
    EndpointConfiguration endpoint =
        EndpointConfiguration.newBuilder()
            .setBindAddress("127.0.0.1")
            .setBindPort(Integer.parseInt(arguments[0]))
            .setHostname("127.0.0.1")
            .build();
    var server =
        new OpcUaServer(
            OpcUaServerConfig.builder()
                .setApplicationUri("urn:example:press-server")
                .setEndpoints(Collections.singleton(endpoint))
                .setCertificateManager(new DefaultCertificateManager())
                .setIdentityValidator(new Anyone())
                .build());
    var press = new Press(server, (int) option(options, "variables"));
    press.startup();
    server.startup().get();
    System.out.println("ready");
    var log = new PrintWriter(new FileWriter(arguments[1], true));
    long every = (long) (option(options, "every_s") * 1e9);
    long next = System.nanoTime();
    for (long number = (long) option(options, "first"); ; number++) {
      press.change(number, log);
      next += every;
      Thread.sleep(Math.max(0, next - System.nanoTime()) / 1_000_000);
    }
  }
}
